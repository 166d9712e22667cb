"""Whole networks, built of `nn`."""

from .gpt import GPT, CausalSelfAttention, GPTBlock
from .lenet import LeNet
from .recurrent import CharLSTM, LSTMClassifier, RNNForecaster
from .resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet20, resnet34, resnet50
from .seq2seq import Seq2SeqTransformer
from .symmetric import MirrorCNN, RotationCNN
from .vgg import VGG, vgg11, vgg13, vgg16, vgg19

__all__ = [
    "GPT",
    "VGG",
    "BasicBlock",
    "Bottleneck",
    "CausalSelfAttention",
    "CharLSTM",
    "GPTBlock",
    "LSTMClassifier",
    "LeNet",
    "MirrorCNN",
    "RNNForecaster",
    "ResNet",
    "RotationCNN",
    "Seq2SeqTransformer",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
]
