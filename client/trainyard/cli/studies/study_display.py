"""Study for people: the state of its jobs, a table of measurements, and a chart of speed-ups."""

from rich.table import Table
from rich.text import Text

from trainyard.cli.jobs.verifying import VERDICTS
from trainyard.cli.output import console, print_table, say, state_text
from trainyard.inert import one_line
from trainyard.views import MeasuredJob, Study, StudyReport
from trainyard.wording import number

BAR_WIDTH = 40  # columns of the longest bar
REACHED, MISSED = "█", "░"


def jobs_table(study: Study | StudyReport) -> Table:
    """Return the progress of each job, for a display that is redrawn."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for job in study.jobs:
        table.add_row(one_line(job.label), state_text(job.state), f"{job.step:,}/{job.steps:,}")
    return table


def show_report(report: StudyReport) -> None:
    """Print the answer, the table, the chart, bottlenecks, and the reasons for missing numbers."""
    say(report.summary)
    say("")
    _show_table(report)
    if any(point.speed_up is not None for point in report.points[1:]):
        say("")
        _show_chart(report)
    notes = [f"{point.label}: {point.judgement or ''}" for point in report.points]
    notes = [note for note, point in zip(notes, report.points, strict=True) if point.judgement]
    notes += [f"{point.label}: {point.missing}" for point in report.points if point.missing]
    if notes:
        say("")
    for note in notes:
        say(note)


def _show_table(report: StudyReport) -> None:
    expected = "expected" if report.kind == "schedules" else "ideal"
    columns: dict[str, list[object]] = {
        "job": [point.label for point in report.points],
        "state": [state_text(job.state) for job in report.jobs],
        "batch": [f"{point.global_batch_size:,}" for point in report.points],
        "step time": [_seconds(point.step_time_s) for point in report.points],
        "tokens/s": [_rounded(point.tokens_per_s) for point in report.points],
        "speed-up": [_times(point.speed_up) for point in report.points],
        expected: [_times(point.expected_speed_up) for point in report.points],
        "efficiency": [_percent(point.efficiency) for point in report.points],
        "serial": [_percent(point.serial_fraction) for point in report.points],
        "bubble": [_percent(point.bubble) for point in report.points],
        "communication": [_percent(point.communication) for point in report.points],
        "loss differs by": [_loss_difference(point) for point in report.points],
        "curve": [_verdict(point) for point in report.points],
    }
    known = {name: values for name, values in columns.items() if any(values)}
    print_table(
        list(known),
        zip(*known.values(), strict=True),
        empty="",
        right=[name for name in known if name not in ("job", "state", "curve")],
    )


def _show_chart(report: StudyReport) -> None:
    """Print a bar for each job: the speed-up in full blocks, the shortfall in light ones."""
    out, first = console(), report.points[0].label
    longest = max(max(p.speed_up or 0, p.expected_speed_up or 0) for p in report.points)
    width = max(len(point.label) for point in report.points)
    ideal = "the prediction from the bubbles" if report.kind == "schedules" else "the ideal"
    out.print(Text(f"speed-up against {first}; {MISSED} up to {ideal}", style="dim"))
    for point in report.points:
        bar = _bar(point.speed_up or 0, point.expected_speed_up or 0, longest)
        value = _times(point.speed_up) or "-"
        out.print(Text(f"{one_line(point.label):<{width}}  {bar} {value}"), soft_wrap=True)


def _bar(reached: float, expected: float, longest: float) -> str:
    full = round(BAR_WIDTH * reached / longest)
    light = max(0, round(BAR_WIDTH * expected / longest) - full)
    return (REACHED * full + MISSED * light).ljust(BAR_WIDTH)


def _verdict(point: MeasuredJob) -> Text | None:
    return None if point.curve is None else VERDICTS.get(point.curve.verdict)


def _loss_difference(point: MeasuredJob) -> str | None:
    if point.curve is None:
        return None
    largest = point.curve.loss.largest
    return "not finite" if largest is None else f"{largest:.1e}"


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{number(value, digits=3)} s"


def _rounded(value: float | None) -> str | None:
    return None if value is None else number(round(value))


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.0f} %"
