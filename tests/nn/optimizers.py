"""Torch's optimizers, with options that make their steps do more."""

from __future__ import annotations

from torch import optim

OPTIMIZERS: dict[str, tuple[type[optim.Optimizer], dict[str, object]]] = {
    "ASGD": (optim.ASGD, {}),
    "Adadelta": (optim.Adadelta, {"weight_decay": 0.1}),
    "Adagrad": (optim.Adagrad, {"lr_decay": 0.1}),
    "Adam": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"maximize": True}),
    "Adamax": (optim.Adamax, {}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Rprop": (optim.Rprop, {}),
    "SGD": (optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "SGD, momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
}
