"""Explorations in a browser: one local page, whose numbers this library computes.

`server.Server` answers on the loopback interface alone; `convolution`, `mirror`, `rotation`,
`digits` and `attention` compute what the page shows, each from the fields of one JSON object. The
page itself is in `page/`: plain files, nothing that has to be built, nothing from elsewhere.
`python -m fusednn explore` starts it.
"""
