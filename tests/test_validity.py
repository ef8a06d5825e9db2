"""Validity belongs to the combination."""

import pytest

import relbo


@pytest.mark.parametrize(
    ("kernel", "entropy", "options", "valid"),
    [
        (relbo.SGD(), relbo.Particle(), {}, False),
        (relbo.SGLD(), relbo.MonteCarlo(), {}, False),
        (relbo.SGLD(), relbo.ReverseKernel(), {}, True),
        (relbo.Underdamped(), relbo.ReverseKernel(), {}, True),
        (relbo.SGLDR(), relbo.ReverseKernel(), {}, True),
        (relbo.PSGLD(metric="local"), relbo.ReverseKernel(), {}, True),
        (relbo.PSGLD(metric=1.0), relbo.ReverseKernel(), {}, True),
        (relbo.SGD(), relbo.Gaussian(), {}, True),
        (relbo.SGLD(), relbo.Gaussian("draw"), {}, True),
        (relbo.SGD(), relbo.ChangeOfVariables(), {}, None),
        (relbo.SGD(), relbo.ChangeOfVariables(8), {"dimension": 9}, False),
        (relbo.SVGD(), relbo.ChangeOfVariables(), {}, None),
        (relbo.FokkerPlanckFlow(), relbo.Particle(), {}, False),
        (relbo.SGLD(), relbo.ReverseKernel(), {"subsampling": "independent"}, True),
        (relbo.SGLD(), relbo.ReverseKernel(), {"subsampling": "shared"}, False),
        (
            relbo.SGLD(),
            relbo.ReverseKernel(),
            {"subsampling": "independent", "importance_weighted": True},
            False,
        ),
        (relbo.SGLD(), relbo.ReverseKernel(), {"importance_weighted": True}, True),
        (relbo.SGLD(), relbo.ReverseKernel(), {"base_has_density": False}, False),
    ],
)
def test_bound(kernel, entropy, options, valid):
    found = relbo.bound(kernel, entropy, 4, **options)
    assert found.valid is valid
    assert found.reason


def test_without_steps_every_account_is_the_base():
    assert relbo.bound(relbo.SGD(), relbo.Particle(), 0).valid is True
    assert relbo.bound(relbo.SGD(), relbo.Particle(), 0, subsampling="shared").valid is True


@pytest.mark.parametrize(
    ("kernel", "entropy", "names"),
    [
        (
            relbo.SGLD(),
            relbo.ChangeOfVariables(),
            ("ChangeOfVariables", "SGLD", "ReverseKernel"),
        ),
        (relbo.SGD(), relbo.ReverseKernel(), ("ReverseKernel", "SGD", "ChangeOfVariables")),
        (relbo.SGD(), relbo.MonteCarlo(), ("MonteCarlo", "SGD", "SGLD")),
        (relbo.PSGLD(), relbo.ReverseKernel(), ("ReverseKernel", "PSGLD", "local")),
        (relbo.Underdamped(), relbo.MonteCarlo(), ("MonteCarlo", "Underdamped", "Reverse")),
        (relbo.SVGD(), relbo.Gaussian(), ("Gaussian", "SVGD", "draw")),
    ],
)
def test_refusals_name_both_and_say_which_to_use(kernel, entropy, names):
    with pytest.raises(ValueError, match="use") as refusal:
        relbo.Refinement(kernel, entropy, num_steps=2)
    assert all(name in str(refusal.value) for name in names)


def test_table_has_a_row_a_kernel_and_a_column_an_account():
    rows = relbo.validity_table().splitlines()
    assert all(row.count("|") == 7 for row in rows)
    assert "| SGLD | surrogate | surrogate | **bound** | refused | **bound** |" in rows
    assert (
        "| SGD | surrogate | refused | **bound** | bound while one-to-one | refused |" in rows
    )
