"""CharLSTM, LSTMClassifier, RNNForecaster."""

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import models

IDS = np.random.default_rng(0).integers(0, 11, (3, 9))


def net(**options):
    fn.manual_seed(1)
    return models.CharLSTM(11, 7, **{"embedding_dim": 5, **options}).eval()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("embedding", [None, 5])
def test_char_lstm_is_its_parts(layers, embedding, dtype):
    model = net(num_layers=layers, embedding_dim=embedding, dtype=dtype)
    with fn.no_grad():
        logits, (h, c) = model(IDS)
        assert logits.dtype == np.dtype(dtype)
        assert h.shape == c.shape == (layers, 3, 7)
        if embedding is None:
            x = np.eye(11, dtype=dtype)[IDS]
        else:
            x = model.embedding.weight.numpy()[IDS]
        out, _ = model.lstm(x)
        expected = out.numpy() @ model.head.weight.numpy().T + model.head.bias.numpy()
    np.testing.assert_allclose(logits.numpy(), expected, rtol=2e-5, atol=1e-6)


def test_char_lstm_against_torch():
    torch = pytest.importorskip("torch")
    model = net(num_layers=2)
    embedding, head = torch.nn.Embedding(11, 5), torch.nn.Linear(7, 11)
    lstm = torch.nn.LSTM(5, 7, 2, batch_first=True)
    state = {name: torch.tensor(value) for name, value in model.state_dict().items()}
    for name, part in (("embedding", embedding), ("lstm", lstm), ("head", head)):
        lead = name + "."
        part.load_state_dict({k[len(lead) :]: v for k, v in state.items() if k.startswith(lead)})
    theirs = head(lstm(embedding(torch.tensor(IDS)))[0])
    loss = torch.nn.functional.cross_entropy(
        theirs[:, :-1].reshape(-1, 11), torch.tensor(IDS[:, 1:].ravel())
    )
    loss.backward()
    logits, _ = model(IDS)
    ours = F.cross_entropy(logits[:, :-1].reshape(-1, 11), IDS[:, 1:].ravel())
    ours.backward()
    np.testing.assert_allclose(logits.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    parts = {"embedding": embedding, "lstm": lstm, "head": head}
    theirs_grad = {
        f"{a}.{b}": p.grad.numpy() for a, m in parts.items() for b, p in m.named_parameters()
    }
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(
            parameter.grad.numpy(), theirs_grad[name], rtol=1e-4, atol=1e-7, err_msg=name
        )


def test_the_state_goes_on():
    model = net(num_layers=2)
    with fn.no_grad():
        whole, _ = model(IDS)
        first, state = model(IDS[:, :4])
        second, _ = model(IDS[:, 4:], state)
    joined = np.concatenate([first.numpy(), second.numpy()], 1)
    np.testing.assert_allclose(joined, whole.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("embedding", [None, 5])
def test_greedy_text_is_the_likeliest_step_by_step(embedding):
    model = net(embedding_dim=embedding, num_layers=2)
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8]]
    found = model.generate(prompts, 6, temperature=0)
    for prompt, text in zip(prompts, found, strict=True):
        row = list(prompt)
        for _ in range(6):
            with fn.no_grad():
                row.append(int(model(np.array([row]))[0].numpy()[0, -1].argmax()))
        assert text.tolist() == row


def test_text_ends_and_streams():
    model = net()
    (greedy,) = model.generate([[1, 2]], 5, temperature=0)
    end = int(greedy[3])
    (short,) = model.generate([[1, 2]], 5, temperature=0, eos=end)
    assert short.tolist() == greedy[: greedy.tolist().index(end, 2) + 1].tolist()
    fn.manual_seed(3)
    (drawn,) = model.generate([[1, 2]], 5, top_k=4)
    fn.manual_seed(3)
    assert [int(step[0]) for step in model.stream([[1, 2]], 5, top_k=4)] == drawn[2:].tolist()
    assert model.generate([], 4) == []
    with pytest.raises(ValueError, match="generate: prompt 0 has tokens from 11 to 11"):
        model.generate([[11]], 1)
    with pytest.raises(ValueError, match=r"CharLSTM: ids have shape \(3,\)"):
        model(np.arange(3))
    with pytest.raises(ValueError, match="dtype float64, expected integers"):
        model(np.zeros((1, 2)))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_classes_are_told_from_each_ones_own_end(bidirectional, dtype):
    fn.manual_seed(0)
    model = models.LSTMClassifier(3, 4, 5, 2, bidirectional=bidirectional, dtype=dtype).eval()
    x = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(dtype)
    lengths = np.array([6, 1, 3, 2])
    padded = x.copy()
    for row, length in zip(padded, lengths, strict=True):
        row[length:] = np.nan
    with fn.no_grad():
        together = model(padded, lengths).numpy()
        alone = [model(x[i : i + 1, :n]).numpy()[0] for i, n in enumerate(lengths)]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)


def test_classifier_gradients():
    fn.manual_seed(0)
    model = models.LSTMClassifier(2, 3, 2, bidirectional=True, dtype="float64")
    x = np.random.default_rng(0).standard_normal((2, 4, 2))
    weight = fn.tensor(x, requires_grad=True)
    assert fn.testing.gradcheck(lambda a: model(a, np.array([4, 2])), [weight])


def test_forecasts_come_at_every_step():
    fn.manual_seed(0)
    model = models.RNNForecaster(2, 3, 2)
    x = np.random.default_rng(0).standard_normal((4, 6, 2), np.float32)
    with fn.no_grad():
        y, h = model(x)
        assert h.shape == (2, 4, 3)
        first, state = model(x[:, :3])
        second, _ = model(x[:, 3:], state)
    joined = np.concatenate([first.numpy(), second.numpy()], 1)
    np.testing.assert_allclose(joined, y.numpy(), rtol=1e-5, atol=1e-6)
