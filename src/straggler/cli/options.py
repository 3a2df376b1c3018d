"""The options of the command line: what each is called, explained by, and grouped under."""

from pathlib import Path
from typing import Annotated

import typer

WHAT, HOW, WHO, LONG, SEEN = "What is trained", "How", "By whom", "How long", "What is kept and shown"

Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, or the beginning of its id.")]
Runs = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="Folders of runs, or the beginnings of their ids.")
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Where records are.")]
Records = Annotated[Path, typer.Option("--runs", "--out", help="Where records are.")]

Dataset = Annotated[
    str | None,
    typer.Option(show_default="fashion-mnist", rich_help_panel=WHAT, help="`straggler list datasets`"),
]
Model = Annotated[
    str | None, typer.Option(show_default="lenet5", rich_help_panel=WHAT, help="`straggler list models`")
]
Validation = Annotated[
    float | None, typer.Option(rich_help_panel=WHAT, help="Part of the training set kept apart.")
]
Method = Annotated[
    str | None,
    typer.Option(
        show_default="asgd",
        rich_help_panel=HOW,
        help="A policy, correction and optimizer by a paper's name: `straggler list methods`",
    ),
]
Policy = Annotated[str | None, typer.Option(rich_help_panel=HOW, help="When the server steps.")]
Correction = Annotated[
    str | None, typer.Option(rich_help_panel=HOW, help="What is done to a stale gradient.")
]
Optimizer = Annotated[
    str | None,
    typer.Option(rich_help_panel=HOW, help="Any torch.optim class, such as 'adam(betas=[0.9, 0.99])'."),
]
Lr = Annotated[float | None, typer.Option(show_default="0.01", rich_help_panel=HOW, help="Learning rate.")]
Momentum = Annotated[float | None, typer.Option(rich_help_panel=HOW, help="Of the optimizer.")]
Nesterov = Annotated[
    bool | None,
    typer.Option("--nesterov/--no-nesterov", rich_help_panel=HOW, help="Look ahead along the momentum."),
]
WeightDecay = Annotated[float | None, typer.Option(rich_help_panel=HOW, help="Of the optimizer.")]
Schedule = Annotated[
    str | None,
    typer.Option(
        show_default="constant", rich_help_panel=HOW, help="Any torch.optim.lr_scheduler, per epoch."
    ),
]
Warmup = Annotated[
    float | None, typer.Option(rich_help_panel=HOW, help="Epochs of linear warm-up from lr/workers.")
]
Workers = Annotated[
    str | None,
    typer.Option(
        show_default="4",
        rich_help_panel=WHO,
        help="How many; [bold]2-8[/bold]: they may come and go (real time).",
    ),
]
BatchSize = Annotated[int | None, typer.Option(show_default="32", rich_help_panel=WHO, help="Per worker.")]
Partition = Annotated[
    str | None,
    typer.Option(
        show_default="iid", rich_help_panel=WHO, help="Who has which data: `straggler list partitions`"
    ),
]
Compute = Annotated[
    str | None,
    typer.Option(
        show_default="constant(seconds=1)",
        rich_help_panel=WHO,
        help="Seconds a gradient takes, in virtual time: `straggler list delays`",
    ),
]
Delay = Annotated[
    list[str] | None, typer.Option(rich_help_panel=WHO, help="Seconds on top; may be repeated.")
]
Epochs = Annotated[
    float | None,
    typer.Option(
        show_default="1", rich_help_panel=LONG, help="Samples of all workers ÷ size of the training set."
    ),
]
Updates = Annotated[int | None, typer.Option(rich_help_panel=LONG, help="Server steps.")]
Gradients = Annotated[int | None, typer.Option(rich_help_panel=LONG, help="Of all workers together.")]
Seconds = Annotated[
    float | None, typer.Option(rich_help_panel=LONG, help="Virtual time; real, with processes and ray.")
]
Stop = Annotated[
    str | None,
    typer.Option(
        show_default="all",
        rich_help_panel=LONG,
        help="all: together; each: every worker after its own share.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(show_default="0", rich_help_panel=HOW, help="Weights, batches, delays: all that is random."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        rich_help_panel=LONG,
        help="Processes that compute; all cores by default. Changes no result.",
    ),
]
EvalEvery = Annotated[
    float | None,
    typer.Option(show_default="1", rich_help_panel=SEEN, help="Epochs; 0 = only at the end."),
]
TrainMetrics = Annotated[
    bool | None,
    typer.Option("--train-metrics", rich_help_panel=SEEN, help="The training set at every evaluation too."),
]
Snapshots = Annotated[int | None, typer.Option(rich_help_panel=SEEN, help="Weights kept along the run.")]
Out = Annotated[Path, typer.Option("--out", rich_help_panel=SEEN, help="Where records go.")]
Data = Annotated[Path | None, typer.Option(rich_help_panel=WHAT, help="A folder with the data files.")]
Config = Annotated[
    Path | None, typer.Option(rich_help_panel=SEEN, help="A TOML file with any of these keys.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", rich_help_panel=SEEN, help="Any key of an experiment."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(rich_help_panel=SEEN, help="Host seconds (60s) or updates (500) between checkpoints."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        show_default="simulator",
        rich_help_panel=WHO,
        help="simulator (virtual time), or in real time: processes (this machine) or ray (a cluster).",
    ),
]
WorkerTimeout = Annotated[
    float,
    typer.Option(min=0.1, rich_help_panel=WHO, help="Seconds until a silent process is replaced."),
]
Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=WHO,
        help="The Ray cluster to join, such as 10.0.0.1:6379 or auto; without it, Ray is started here.",
    ),
]
WorkerResources = Annotated[
    str | None,
    typer.Option(
        show_default="CPU=1",
        rich_help_panel=WHO,
        help="What each worker needs of a Ray cluster: [bold]CPU=0.5, GPU=1[/bold], or names of your own.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", rich_help_panel=SEEN, help="Run it again though its record exists.")
]
Json = Annotated[
    bool, typer.Option("--json", rich_help_panel=SEEN, help="The summary as one line of JSON, last.")
]
