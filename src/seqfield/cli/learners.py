"""The kinds of models that can be trained, and their options on the command line.

Options come from the tables of parameters of the estimators. These take long to import, so the
command is made only when it is asked for (`expanded`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

#: learners and their classes
CLASSES = {
    "crf": "CRF",
    "tagger": "Tagger",
    "perceptron": "StructuredPerceptron",
    "boost": "SequenceBoost",
    "adaboost": "AdaBoost",
    "hmm": "HMM",
    "gpsc": "GPSC",
    "kernelcrf": "KernelCRF",
    "hmsvm": "HMSVM",
    "gpsl": "GPSL",
    "gpstruct": "GPStruct",
    "svgp": "StructuredSVGP",
}
# mypy reads the members of an enumeration only where they are written out
Learner = StrEnum("Learner", list(CLASSES))  # type: ignore[misc]
FIRST = Learner("crf")

#: options that are not called like the argument
OPTIONS = {"observed_only": "all-features", "n_jobs": "jobs", "C": "slack-weight"}
OPTIONS |= {"random_state": "seed", "missing_label": "missing"}
#: arguments that the command gives in a way of its own, or that one run has no use for
OTHERS = {"features", "classes", "calibrate", "verbose", "warm_start", "candidates", *OPTIONS}
OTHERS |= {"scheme", "on_violation"}
OTHERS -= {"observed_only", "C"}
#: what is said of options that learners explain in different words
HELP = {
    "max_iter": "most iterations, epochs, passes or rounds",
    "tol": "tolerance at which training stops",
    "loss": "what is minimised",
    "solver": "how the minimum is found",
    "kernel": "a kernel by its name",
    "n_inducing": "inducing tokens that approximate the kernel",
    "learn_kernel": "learn the kernel's parameters",
    "n_samples": "posterior draws that predictions are averaged over",
    "eta": "prior variance of transition scores, in units of the kernel",
    "gram_budget": "the most GiB that gram matrices may take",
    "inducing": "how inducing tokens are chosen",
    "engine": "jax runs on the device of JAX",
    # of flags for False
    "observed_only": "give a weight to label pairs and features never seen together",
    "transitions": "leave transition scores out",
    "average": "use the last weights, not their mean over all steps",
    # of parameters that can be more in Python, or that name others
    "C": "weight of the slacks; by default 2 / mean of k(x, x) over the distinct training tokens",
    "refit": '"log" or "exp" fits all chosen weights together at the end, with this loss and the '
    'L2 penalty --refit-c2; with "log" the model has the probabilities of a CRF',
    "emission": '"multinomial" for features that count, or are there or not; "gaussian" with a '
    'mean and a variance for each label and feature; "auto" takes what suits the features',
    "posterior": '"map" predicts with the MAP estimate; "laplace" averages predictions over '
    "--n-samples draws from a Gaussian at it",
    "n_steps": 'steps of each chain; by default 5000 for "ess", 200 for the others',
    "likelihood": '"chain" is exact; "piecewise" takes each edge by itself: cheaper, and a worse '
    "model of the whole",
    "gradient": '"reparam" takes the derivative of the likelihood; "score" its values alone, with '
    "far more noise: raise --n-mc",
    "offsets": "where the labels are that a label depends on: -1 the one before, -1,1 both "
    'neighbours, or any others; "" makes tokens independent',
    "inference": '"refine" takes the labels around a label for independent; "chain", with '
    "--offsets=-1,1, has a joint distribution, which spans, tag --nbest and suggest need",
    "half_variances": "predict with the mean of exp(score), as the paper does, in place of the "
    "mean score",
}
#: parameters that have an effect with some values of another one alone
NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "cost": ("loss", ("softmax_margin",)),
    "n_restarts": ("loss", ("marginal",)),
    "length_weight": ("loss", ("exp",)),
    "validation_fraction": ("early_stopping", (True,)),
    "patience": ("early_stopping", (True,)),
    "refit_c2": ("refit", ("log", "exp")),
    "laplace": ("posterior", ("laplace",)),
    "n_coordinates": ("method", ("sparse", "sequence")),
    "n_per_round": ("method", ("sparse", "sequence")),
}
SEVERAL = "Options of several learners"


class Setting(NamedTuple):
    """A parameter on the command line: the learners that have it, with their tables' entries."""

    name: str
    params: dict[str, Any]

    @property
    def first(self) -> Any:
        """The entry of the first learner."""
        return next(iter(self.params.values()))

    @property
    def panel(self) -> str:
        """The section of the help."""
        return SEVERAL if len(self.params) > 2 else f"Options of {' and '.join(self.params)}"

    @property
    def option(self) -> str:
        """Its name on the command line."""
        name = OPTIONS.get(self.name, self.name).replace("_", "-")
        if self.is_flag and len(self._defaults) > 1:
            return f"--{name}/--no-{name}"
        off = self.is_flag and self.first.default and self.name not in OPTIONS
        return f"--no-{name}" if off else f"--{name}"

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return bool(self.first.kind == "flag")

    @property
    def _defaults(self) -> set[Any]:
        return {param.default for param in self.params.values()}

    @property
    def help(self) -> str:
        """What it is for, and in which learners."""
        text = HELP.get(self.name, self.first.help).replace("``", "")
        text = text[0].upper() + text[1:]
        return f"{text} ({', '.join(self.params)})." if len(self.params) > 2 else f"{text}."

    @property
    def annotation(self) -> Any:
        """The type and the option for typer."""
        names = ("-C", self.option) if self.name == "C" else (self.option,)
        if self.is_flag:
            return Annotated[bool | None, self._option(names)]
        return Annotated[self._kind | None, self._option(names, metavar=self._metavar)]

    def _option(self, names: tuple[str, ...], **more: Any) -> Any:
        return typer.Option(
            *names, help=self.help, show_default=False, rich_help_panel=self.panel, **more
        )

    @property
    def _words(self) -> list[str]:
        found = (_told(word) for param in self.params.values() for word in param.words)
        return list(dict.fromkeys(found))

    @property
    def _kind(self) -> Any:
        if self.name == "kernel":
            from seqfield.kernels._base import NAMES

            return StrEnum("Kernel", {name: name for name in NAMES})
        if self.first.kind == "word":
            return StrEnum(self.name, {word: word for word in self._words})
        return str

    @property
    def _metavar(self) -> str | None:
        if self.first.kind not in ("number", "whole"):
            return "NUMBERS" if self.name == "offsets" else None
        words = [word for word in self._words if word != "none"]
        return "|".join(["NUMBER", *words])

    def named(self, value: Any) -> str:
        """The option as it is typed for a value."""
        if self.is_flag:
            return self.option.split("/")[-1 if value is False else 0]
        return f"{self.option} {_told(value)}"

    def value(self, learner: str, text: Any) -> Any:
        """The argument of a learner that a text stands for."""
        if learner not in self.params:
            typed = self.named(text) if self.is_flag else self.option
            raise typer.BadParameter(f"{typed} has no meaning for --learner {learner}")
        param = self.params[learner]
        if param.kind == "flag":
            return text if len(self._defaults) > 1 else not param.default
        if self.name == "offsets":
            return _numbers(text, self.option)
        for word in param.words:
            if text == _told(word):
                return word
        # every learner with a c2 has a value for it that is a good start
        if text == "auto" and self.name == "c2":
            return param.default
        if param.kind == "any":
            return str(text)
        return self._checked(learner, str(text))

    def _checked(self, learner: str, text: str) -> Any:
        """A number that the learner can have."""
        param = self.params[learner]
        try:
            value = float(text)
            exact = int(text) if _is_whole(text) else value
            if param.kind == "whole" and value.is_integer():
                exact = int(exact)
            param.check(self.name, exact)
            return exact
        except ValueError:  # of float, or of the table
            words = tuple(_told(word) for word in param.words if word is not None)
            form = replace(param, words=words, accepts=(), functions=False).form
            raise typer.BadParameter(
                f"expected {form} for --learner {learner}, got {text!r}".replace('"', ""),
                param_hint=self.option,
            ) from None


def _check_needs(known: dict[str, Setting], learner: str, given: dict[str, Any]) -> None:
    """Refuse options that would have no effect."""
    for name, (other, values) in NEEDS.items():
        if name not in given:
            continue
        param = known[other].params.get(learner)
        if param is not None and given.get(other, param.default) not in values:
            wanted = " or ".join(known[other].named(value) for value in values)
            raise typer.BadParameter(f"{known[name].option} has no effect without {wanted}")


def _is_whole(text: str) -> bool:
    return text.lstrip("+-").isdigit()


def _told(word: Any) -> str:
    """A word of a table as it is typed."""
    return str(word).lower() if word is None or isinstance(word, bool) else str(word)


def _numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as -1,1; an empty one makes tokens independent."""
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers such as -1,1, got {text!r}", param_hint=option
        ) from None


def settings() -> dict[str, Setting]:
    """All parameters that can be set on the command line, by name."""
    from seqfield import estimators
    from seqfield.estimators._params import table

    found: dict[str, dict[str, Any]] = {}
    for learner, name in CLASSES.items():
        for parameter, param in table(getattr(estimators, name)).items():
            plain = param.kind != "any" or parameter in ("kernel", "offsets")
            if plain and parameter not in OTHERS:
                found.setdefault(parameter, {})[learner] = param
    return {name: Setting(name, params) for name, params in found.items()}


class GroupedCommand(TyperCommand):
    """A command whose help lists options by the section that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, section by section."""
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            place = "Arguments" if param.param_type_name == "argument" else "Options"
            if record is not None:
                own = getattr(param, "rich_help_panel", None)
                sections.setdefault(own or place, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def expanded(function: Callable[..., None]) -> Any:
    """The command of a function, with options for the settings of all learners besides its own.

    The function gets those that were given in ``given``, as arguments of the learner.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    own = dict(inspect.signature(function).parameters)
    del own["given"]
    known = settings()

    def command(**values: Any) -> None:
        texts = {name: values.pop(name) for name in known}
        learner = str(values["learner"])
        given = {
            name: known[name].value(learner, text)
            for name, text in texts.items()
            if text is not None
        }
        _check_needs(known, learner, given)
        function(**values, given=given)

    parts = [one.replace(annotation=hints[name]) for name, one in own.items()]
    kind = inspect.Parameter.KEYWORD_ONLY
    for name, setting in known.items():
        parts.append(inspect.Parameter(name, kind, default=None, annotation=setting.annotation))
    command.__doc__, command.__name__ = function.__doc__, function.__name__
    command.__annotations__ = {one.name: one.annotation for one in parts}
    # a function may have a signature of its own, but its type does not say so
    command.__signature__ = inspect.Signature(parts)  # type: ignore[attr-defined]
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(function.__name__, cls=GroupedCommand)(command)
    return typer.main.get_command(app)
