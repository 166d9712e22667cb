"""Recurrent networks."""

from __future__ import annotations

from .target import Target

RECURRENT = "test_recurrent_kernels.py"

TARGETS = (
    Target(
        "csrc/cuda/recurrent/rows.cu",
        (RECURRENT, "-k", "values and (lengths or batch or directions or checkpoints)"),
        {
            "bound of the elements": ("if (at >= size) return;", "if (at > size) return;"),
            "sequences as they come": ("view.sequence_of(p.i) * row", "p.i * row"),
            "ended rows count": ("active = i < view.active(t);", "active = i <= view.active(t);"),
            "no zeros behind the end": ("move == Move::put || ", ""),
            "no sum": ("if (move == Move::add) value +=", "if (move == Move::add) value ="),
            "rows from the first": ("- view.row0 + i", "+ i"),
        },
    ),
    Target(
        "csrc/cuda/recurrent/forward.cu",
        (RECURRENT, "-k", "(values or projection) and not norm"),
        {
            "bias of n joined": ("p.cell == Cell::gru ? 2 * p.hidden : width", "width"),
            "a product of nothing": ("if (n == 0 && !p_.h0) return false;", ""),
            "gates of the wrong step": ("(rows_.start(rows_.time(n)) - row0)", "(n)"),
            "ended outputs left": ("if (to && to->out && p_.active)", "if (false)"),
            "the other parity": ("padded.get() + n % 2 * size", "padded.get()"),
            "state of the mask lost": (
                "if (c) copy_bytes(c_.get()",
                "if (!c) copy_bytes(c_.get()",
            ),
        },
        equivalent={"a product of nothing": "zeros add nothing but to infinite weights"},
    ),
    Target(
        "csrc/cuda/recurrent/sequence.cu",
        (RECURRENT, "-k", "launch or values"),
        {
            "weights past the unit": (
                "unit < hidden && k < hidden",
                "unit <= hidden && k < hidden",
            ),
            "depth not ended": ("&& k < hidden ?", "?"),
            "gates in another order": ("c * hidden + unit", "unit * columns + c"),
            "rows past the last": ("r < last ? r : last", "r"),
            "one buffer": ("T* to = s.h + next;", "T* to = s.h + here;"),
            "a unit too many": ("unit < hidden && column", "unit <= hidden && column"),
            "ended states lost": ("row >= active && row < batch", "false"),
            "no meeting": ("if (n + 1 < s.end) grid_sync(counter, phase);", ""),
            "a block too few": (
                "/ (tiling.tiles * each);",
                "/ (tiling.tiles * each) - (hidden > 4);",
            ),
        },
    ),
    Target(
        "csrc/cuda/recurrent/half_tile.h",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "rows past the last": ("if (first + r >= rows) return words;", ""),
            "depth not ended": ("k + e < depth ? from[e].bits : 0", "from[e].bits"),
            "the other format": ("if (brain) {", "if (!brain) {"),
            "lower rows twice": ("{upper.of[2], lower.of[2],", "{upper.of[2], upper.of[2],"),
            "a block too few": ("(hidden + units - 1) / units;", "hidden / units;"),
        },
        compiled="csrc/cuda/recurrent/sequence_half_back.cu",
    ),
    Target(
        "csrc/cuda/recurrent/sequence_half.cu",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "weights past the unit": ("gate < gates && unit < s.hidden", "gate < gates"),
            "another unit's gate": (
                "(gate * s.hidden + unit) * s.hidden",
                "(gate * s.hidden + unit0) * s.hidden",
            ),
            "one buffer": ("to = s.h + (n + 1) % 2 * size", "to = s.h + n % 2 * size"),
            "ended states lost": ("to.data[state] = from.data[state];", ""),
            "no meeting": ("if (n + 1 < s.end) grid_sync(counter, phase);", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/sequence_half_back.cu",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "n's rows of x": ("(s.cell == Cell::gru ? s.hidden : 0));", "0);"),
            "a part left out": (
                "for (int w = 1; w < kWarps; ++w)",
                "for (int w = 2; w < kWarps; ++w)",
            ),
            "mask ignored": ("sum * factor[e] : 0.0f", "sum : 0.0f"),
            "wide where it is not": ("s.d_row % 8 == 0 && first", "first"),
            "functions of the gates": ("gates_from_before(s.cell, in.kept);", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/sequence_back.cu",
        (RECURRENT, "-k", "launch or values"),
        {
            "depth of one gate": ("values = gates * int(s.hidden)", "values = int(s.hidden)"),
            "n's rows of x": ("s.cell == Cell::gru ? s.hidden : 0);", "0);"),
            "a part left out": (
                "for (int w = 1; w < kWarps; ++w)",
                "for (int w = 2; w < kWarps; ++w)",
            ),
            "mask ignored": ("sum * factor : T(0)", "sum : T(0)"),
            "no meeting": ("            grid_sync(counter, phase);", ""),
            "ended rows too": ("if (cell && mine && row < active)", "if (cell && mine)"),
            "wide where it is not": ("s.hidden * gates_of(s.cell) % n == 0;", "true;"),
        },
    ),
    Target(
        "csrc/cuda/recurrent/backward.cu",
        (RECURRENT, "-k", "values or projection"),
        {
            "bound of the units": ("if (at >= size) return;", "if (at > size) return;"),
            "outer without output": ("outer[at] = dh[at] = d;", "dh[at] = d;"),
            "forward run again too late": (
                "n <= p_.segments[segment_]",
                "n < p_.segments[segment_]",
            ),
            "blocks not added": ("block.add = !first;", "block.add = false;"),
            "unmasked h": ("block.h_before = masked_h_.get();", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/gradients.cu",
        (RECURRENT, "-k", "values"),
        {
            "columns past the end": ("column >= end", "column > end"),
            "n's bias as r's": ("n, 0, hidden", "n, hidden, 2 * hidden"),
            "n's rows as the others'": (
                "weight_grad(rows, hidden, block.d_by_x,",
                "weight_grad(rows, hidden, block.d_by_x + hidden,",
            ),
            "gains swapped": (
                "x.put(column, Accumulate<T>(sum[0])",
                "x.put(column, Accumulate<T>(sum[1])",
            ),
        },
    ),
    Target(
        "csrc/cuda/recurrent/norm_cell.cu",
        (RECURRENT, "test_half_recurrent.py", "-k", "norm"),
        {
            "low forgotten": ("((v - mean) - low) * scale", "(v - mean) * (scale + low)"),
            "o of the gates": ("Sum o = gate(3, unit)", "Sum o = gate(2, unit)"),
            "scales swapped": (
                "s.scale[2 * row + 1] = of_h.scale;",
                "s.scale[2 * row + 1] = of_x.scale;",
            ),
            "mean of the cell": ("mean_c = sum_c / Sum(hidden)", "mean_c = sum_c"),
            "no output's gradient": (
                "s.d_out ? dh[u] + s.d_out[b * s.out_row + u] : dh[u]",
                "dh[u]",
            ),
            "kept behind the functions": ("sizeof(T) == 2 ? before : value", "value"),
            "gates of 16 bits as they are": ("? squashed_gate(g, kept) : kept", "? kept : kept"),
        },
        equivalent={"low forgotten": "what rounding the mean leaves over is within the tolerance"},
    ),
    Target(
        "csrc/cuda/recurrent/cells.h",
        (RECURRENT, "-k", "step_by_step or projection"),
        {
            "sigmoid's other branch": ("x < T(0) ? e * r : r", "x < T(0) ? r : e * r"),
            "no b_hn": ("in.u[2] + in.b_hn", "in.u[2]"),
            "z the other way": ("n + z * (in.h - n)", "in.h + z * (n - in.h)"),
            "i and f swapped": ("f * in.c + i * g", "i * in.c + f * g"),
        },
        compiled="csrc/cuda/recurrent/forward.cu",
    ),
    Target(
        "csrc/cuda/recurrent/cells.h",
        (RECURRENT, "-k", "step_by_step"),
        {
            "relu's gradient at 0": ("in.kept[0] <= T(0)", "in.kept[0] < T(0)"),
            "the gate before": ("dc * in.before, f", "dc * in.before, i"),
        },
        compiled="csrc/cuda/recurrent/backward.cu",
    ),
    Target(
        "csrc/cuda/recurrent/mask.cu",
        (RECURRENT, "-k", "mask"),
        {
            "an element too many": ("if (at >= size) return;", "if (at > size) return;"),
            "a mask for each step": ("o = quotient(row, repeat);", "o = row;"),
            "one mask for all": ("mask[o * inner + (at", "mask[(at"),
            "NaN is not masked": ("factor != Sum(0) ? x[at] * factor : Sum(0)", "x[at] * factor"),
            "kept values are not scaled": ("x[at] * factor : Sum(0)", "x[at] : Sum(0)"),
        },
    ),
)
