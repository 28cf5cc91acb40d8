"""`bounds`: the paper's utility bounds as a table over k."""

from typing import Annotated

import typer

from wholegrain import _check
from wholegrain.cli import display
from wholegrain.cli.options import Json
from wholegrain.errors import SpecError
from wholegrain.privacy import utility_bounds as utility
from wholegrain.privacy.definitions import Budget


def bounds(
    steps: Annotated[int, typer.Option(help="T: steps in all.")],
    learning_rate: Annotated[float, typer.Option(help="η.")],
    rate: Annotated[float, typer.Option(help="q: sampling probability of an item.")],
    dimension: Annotated[int, typer.Option(help="d: parameters of the model.")],
    items: Annotated[int, typer.Option(help="n: items in the silo.")],
    batch_size: Annotated[int, typer.Option(help="m: batch size, for UserLDP.")],
    epsilon: Annotated[float, typer.Option(help="ε.")] = 4.0,
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    lipschitz: Annotated[float, typer.Option(help="L: Lipschitz constant of the loss.")] = 1.0,
    radius: Annotated[float, typer.Option(help="M: radius of the parameter space.")] = 1.0,
    constant: Annotated[float, typer.Option(help="c₂ of the moments accountant; unknown, 1 by default.")] = 1.0,
    k: Annotated[str, typer.Option("--k", help="Items per subject, separated by commas.")] = "1,2,3,4,8,16",
    json: Json = False,
) -> None:
    """Upper bounds on the excess population loss of each algorithm, as the items per subject grow."""
    setting = utility.BoundParameters(
        budget=Budget(epsilon, delta),
        steps=steps,
        learning_rate=learning_rate,
        rate=rate,
        dimension=dimension,
        items=items,
        batch_size=batch_size,
        lipschitz=lipschitz,
        radius=radius,
        constant=constant,
    )
    rows = [
        {
            "k": size,
            "local_item_dp": utility.item_level(setting),
            "local_group_dp": utility.local_group_dp(setting, size),
            "higradavg_dp": utility.higradavg_dp(setting, size),
            "user_ldp": utility.user_ldp(setting),
        }
        for size in _sizes(k)
    ]
    if json:
        display.as_json({"bounds": rows})
        return
    cells = [[display.number(value) for value in row.values()] for row in rows]
    display.out.print(display.table("Excess population loss is at most (up to c₂)", list(rows[0]), cells))


def _sizes(text: str) -> list[int]:
    try:
        return [_check.count("--k", int(part)) for part in text.split(",")]
    except ValueError as error:
        raise SpecError(f"--k takes whole numbers separated by commas, not '{text}'.") from error
