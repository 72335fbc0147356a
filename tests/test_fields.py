"""An algorithm is declared by the fields of a dataclass: types, checks, rates and texts follow."""

import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
import pytest

import jaxrl_fast as jf
from jaxrl_fast.algorithms.registry import ALGORITHMS
from jaxrl_fast.core import Number
from jaxrl_fast.fields import rate_names, texts_of, types_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared(jf.DeclaredAlgorithm):
    discount: jf.Rate01 = 0.9
    """Discount factor."""
    reward_scale: jf.Rate0 = 1.0
    """Factor of the rewards."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Own(Shared):
    name: ClassVar[str] = "own"

    discount: jf.Rate01 = 0.5
    width: Annotated[float, Number(0.5, 2)] = 1.0
    """Width."""
    hidden: tuple[int, ...] = (8,)
    """Sizes of the
    hidden layers.
    """


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_field_has_a_text_and_every_default_is_allowed(name: str):
    assert texts_of(ALGORITHMS[name]).keys() == types_of(ALGORITHMS[name]).keys()
    assert ALGORITHMS[name]().name == name == getattr(jf, name).name


def test_a_field_that_is_declared_again_has_its_own_default_and_the_text_of_its_base():
    assert Own().discount == 0.5 and Shared().discount == 0.9
    assert texts_of(Own) == {
        "discount": "Discount factor.",
        "reward_scale": "Factor of the rewards.",
        "width": "Width.",
        "hidden": "Sizes of the hidden layers.",
    }


def test_an_algorithm_of_ones_own_is_named_by_its_path_unless_it_has_a_name():
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Wider(jf.ppo):
        bound: float = 2.0
        """Bound."""

    assert Wider(num_epochs=3).name.endswith(".Wider") and Wider.name.startswith(__name__)
    assert Own().name == "own" and jf.ppo().name == "ppo"


def test_rates_are_told_by_their_type_and_make_the_hyper_parameters():
    assert rate_names(Own) == ("discount", "reward_scale")
    own = Own(discount=jf.Linear(0.9, 0.99))
    assert own.hyper._asdict() == {"discount": jf.Linear(0.9, 0.99), "reward_scale": 1.0}
    assert type(own.hyper) is type(Own().hyper)
    assert own.options == {"width": 1.0, "hidden": (8,)}
    assert len(jax.tree.leaves(Own().hyper)) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"discount": 1.5}, "discount=1.5: write"),
        ({"discount": "fast"}, "discount='fast': write a number or a schedule"),
        ({"width": 0.1}, "width=0.1: write"),
        ({"hidden": (0,)}, "hidden=\\(0,\\): write whole numbers of at least 1"),
        ({"hidden": 8}, "hidden=8: write a list"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_what_to_write(change: dict, says: str):
    with pytest.raises(ValueError, match=says):
        Own(**change)
    with pytest.raises(ValueError, match=says):
        Own()._replace(**change)


def test_a_list_is_a_tuple_and_a_text_is_a_schedule():
    own = Own(hidden=[4, 4], discount="linear:0.9:0.99")
    assert own.hidden == (4, 4) and own.discount == jf.Linear(0.9, 0.99)


def test_other_rates_and_fields_give_a_declaration_and_other_functions_a_record():
    own = Own()
    rates = own._replace(hyper=own.hyper._replace(discount=np.float32(0.25)))
    assert isinstance(rates, Own) and rates.discount == 0.25 and rates.hidden == (8,)
    assert own._replace(hidden=(2,)).hidden == (2,) and own.hidden == (8,)
    build: Any = lambda spec, num_envs: None  # noqa: E731
    record = own._replace(build=build, hidden=(2,), name="other")
    assert isinstance(record, jf.Algorithm) and record.build is build
    assert (record.name, record.options["hidden"], record.hyper) == ("other", (2,), own.hyper)
    with pytest.raises(NotImplementedError, match="Own has no build"):
        own.build(None, 1)


def test_texts_are_read_from_a_zip_and_are_empty_without_source(tmp_path: Path, monkeypatch):
    source = '''from dataclasses import dataclass

import jaxrl_fast as jf


@dataclass(frozen=True, kw_only=True, eq=False)
class Zipped(jf.DeclaredAlgorithm):
    size: int = 3
    """Size of something."""
'''
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as file:
        file.writestr("zipped_algorithm.py", source)
    monkeypatch.syspath_prepend(str(tmp_path / "own.zip"))
    from zipped_algorithm import Zipped

    assert texts_of(Zipped) == {"size": "Size of something."}
    module: Any = type(sys)("sourceless_algorithm")
    monkeypatch.setitem(sys.modules, "sourceless_algorithm", module)
    exec(source.replace("Zipped", "Sourceless"), module.__dict__)
    assert texts_of(module.Sourceless) == {} and module.Sourceless().size == 3
