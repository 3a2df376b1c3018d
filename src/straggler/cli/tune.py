"""The tune command."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from straggler.analysis.tables import build_table
from straggler.cli import options
from straggler.cli.app import exit_with_error, out
from straggler.cli.sweep import Address, DryRun, On, Results, exit_if_failed
from straggler.cli.train import parse_assignments
from straggler.config.registry import InputError
from straggler.config.settings import override_settings
from straggler.running.untrusted_files import read_toml
from straggler.sweeps.search_report import describe_choice, format_trials
from straggler.sweeps.search_space import parse_search
from straggler.sweeps.suggestions import Sampler
from straggler.sweeps.tune import TuneResult
from straggler.sweeps.tune import tune as run_tuning
from straggler.sweeps.tuning import BATCH, TRIALS

option = partial(typer.Option, rich_help_panel="Search")
SEARCH_HELP = (
    "A setting and its values: [bold]lr=log(1e-4, 1)[/bold], [bold]momentum=uniform(0, 0.9)[/bold], "
    "[bold]workers=int(2, 8)[/bold], or a list such as [bold]lr=\\[0.01, 0.1][/bold]. "
    "[bold]log(1e-4, 1, points=5)[/bold] means five values. May be repeated."
)
OBJECTIVE_HELP = (
    "What is compared: validation_accuracy, validation_loss, a metric ('min validation_perplexity'), "
    "seconds, or 'time to validation_accuracy >= 90'. Never the test set."
)


@partial(options.with_experiment_options, without=["seed"])
def tune(
    *,
    search: Annotated[list[str], option("--search", metavar="KEY=VALUES", help=SEARCH_HELP)],
    objective: Annotated[str, option(help=OBJECTIVE_HELP)] = "validation_accuracy",
    trials: Annotated[
        int | None, option(min=1, show_default=str(TRIALS), help="Combinations of values to try.")
    ] = None,
    sampler: Annotated[
        Sampler | None,
        option(
            show_default="grid if the lists have at most --trials combinations, otherwise tpe",
            help="grid: every combination. random. tpe: Optuna's sampler, which learns from the trials.",
        ),
    ] = None,
    seeds: Annotated[int, option(min=1, help="Runs per trial; all trials have the same seeds.")] = 3,
    prune: Annotated[
        float | None,
        option(
            metavar="PERCENT",
            show_default="never",
            help="Stop a run that is not among the best PERCENT of the trials at an evaluation: 50 is the "
            "median rule.",
        ),
    ] = None,
    batch: Annotated[
        int, option(min=1, help="Trials that are suggested together. Results depend on it, not on --jobs.")
    ] = BATCH,
    widen: Annotated[
        bool, option("--widen", help="Search further if the best value lies on the edge of its range.")
    ] = False,
    shorter: Annotated[
        list[str] | None,
        option("--shorter", metavar="KEY=VALUE", help="A setting of the trials only, such as epochs=3."),
    ] = None,
    config: options.Config = None,
    set_: options.Settings = None,
    trust: options.Trust = False,
    runs: Annotated[Path, options.record_option("--out", "--runs", help="Folder of the records.")] = Path(
        "runs"
    ),
    results: Results = Path("results/tune"),
    jobs: Annotated[
        int | None,
        options.machine_option(min=1, show_default="one per core", help="Runs at the same time."),
    ] = None,
    on: On = "local",
    address: Address = None,
    dry_run: DryRun = False,
    data: options.Data = None,
    device: options.Device = "cpu",
    **settings: Any,
) -> None:
    """Find the best values of some settings, such as the learning rate.

    Every trial is a combination of values, run with several seeds. The trial with the best mean on the
    validation set is chosen, and only its test result is shown. --validation 0.1 holds out a tenth of the
    training set.

    [bold]straggler tune --dataset digits --model mlp --method dana-ga --workers 8 --epochs 4 --validation 0.2
    --search 'lr=log(1e-3, 1)' --search 'momentum=\\[0, 0.5, 0.9]'[/bold]

    If the command is interrupted or killed, run it again to continue: finished runs are cached, and the same
    trials follow. To tune each method of a sweep, write a table `tune` into its file (docs/tuning.md).
    """
    changes = parse_assignments(set_ or []) | {key: v for key, v in settings.items() if v is not None}
    try:
        known = {} if config is None else read_toml(config)
    except ValueError as error:
        raise InputError(f"{config} is not a TOML file: {error}") from None
    try:
        result = run_tuning(
            override_settings(known, changes),
            parse_search(search),
            objective=objective,
            trials=trials,
            sampler=sampler,
            seeds=seeds,
            prune=prune,
            batch=batch,
            widen=widen,
            shorter=parse_assignments(shorter or [], "--shorter"),
            out=runs,
            results=results,
            cores=jobs,
            on=on,
            address=address,
            data=data,
            device=device,
            untrusted_source=str(config) if config and not trust else None,
            dry_run=dry_run,
        )
    except KeyboardInterrupt:
        exit_with_error("interrupted; the same command continues the tuning", code=130)
    if not dry_run:
        show_tuning(result)
    exit_if_failed(len(result.failures))


def show_tuning(result: TuneResult) -> None:
    """Print the trials, and the test result of the chosen one."""
    search = result.searches[0]
    out.print(build_table(f"{len(search.trials)} trials", *format_trials(search)))
    if (table := result.formatter) is not None:
        out.print(build_table("The chosen values", *table.rows()))
    folder = result.plan.store.folder
    out.print(describe_choice([search]), soft_wrap=True)
    out.print(
        f"Trials: {folder}/trials.csv. Figure: {folder}/search.png. Page: {folder}/sweep.md.", soft_wrap=True
    )
