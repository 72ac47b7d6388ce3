"""The grammar of a printed line: a report has known metrics with numbers, and only known words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from worker.script.points import STEP_NAMES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LONGEST_STATE = 4096
LONGEST_COUNT = 12
MOST_SHAPES = 5000
METRICS = _words(
    "loss logloss nll ppl perplexity bpb acc accuracy acc1 acc5 top1 top5 f1 auc mae mse rmse wer "
    "bleu iou miou dice psnr reward"
)
NEEDLES = ("loss", "epoch", *(word for word in METRICS if not re.search("loss|acc.|.mse", word)))
"""A line without any of these is no report."""
SETTINGS = _words(
    "scale scaler weight weights fn func function coef type alpha best min target threshold initial"
)
"""A name such as loss_scale is a setting."""
OF_CONFIGURATIONS = _words("batch_size seed epochs steps max_steps num_epochs optimizer")
"""A dictionary with such a name is an echoed configuration."""
COMPANIONS = {"lr": "lr", "learning_rate": "lr", "grad_norm": "grad_norm", "gnorm": "grad_norm"}
"""Numbers that belong to no split, under their usual names."""
STEPS = frozenset((*STEP_NAMES, "steps", "iterations", "num_updates", "train_step"))
EPOCHS = frozenset(("epoch", "epochs", "ep"))
BATCHES = frozenset(("batch", "batches", "minibatch"))
SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "validating": "val", "eval": "val", "evaluation": "val", "evaluating": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
LABELS = _words(
    "fold trial seed worker client agent run model stage phase gpu device cuda node proc process"
)
"""Several of these print into one output; each is a curve of its own."""
FILLERS = _words(
    "set average avg mean running current time eta end of progress fitting fine-tuning finetuning"
)
LINKS = _words("is was of at became")
"""Between a metric and its number, in a sentence."""
PARTS_OF_NAMES = _words(
    "lm kl mlm policy value actor critic generator discriminator reconstruction recon aux total "
    "cls box seg moe ce learning grad"
)
UNITS = _words(
    "s sec secs second seconds ms us m min mins minutes h hr hours it its k kb mb gb kib mib gib "
    "mfu tflops tok tokens samples images bf16 fp16 fp32 z nanz"
)
PACES = _words("s sec second it iter iteration step batch epoch")
"""After a slash: of a unit such as ms/step."""
NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
DIGITS = re.compile(r"\d{1,12}")
"""Longer numbers are no counts, so that their lines have another shape."""
PLAIN = re.compile(NUMBER)
RATIO = re.compile(r"\d ?/ ?\d")
TOKEN = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d|\d{1,3}:\d\d(?::\d\d)?(?:[.,]\d+)?)"
    r"|(?P<ratio>\d{1,12} {0,4}/ {0,4}\d{1,12})(?![\w./])"
    rf"|(?P<number>{NUMBER}|(?<![\w.])[-+]?(?:nan|NaN|inf|Infinity)(?![\w.]))"
    r"|(?P<word>[A-Za-z_][\w./@'-]{0,80})"
)
GAP = re.compile(r"""['")]?\s{0,24}[:=]?\s{0,24}['"(\[]?\s{0,12}""")
"""Between a name and its number."""
ENTRY = re.compile(
    rf"""['"]([\w./@ -]{{1,80}})['"]: ?['"]?({NUMBER}|nan|NaN|-?inf)['"]?(?=[,}}])"""
)
KEY = re.compile(r"""['"][\w./@ -]{1,80}['"]:""")
WRAPPED = re.compile(rf"\b(?:tensor|array|np\.float\d\d)\(({NUMBER})(?:, [^()]{{0,100}})?\)")
AFTER = re.compile(
    r"\b((?:\w{1,20} )?(?:loss|accuracy)) (?:at|after) (step|iteration|epoch) (\d{1,12})"
    rf"(?: is |: ?| ?= ?)({NUMBER})",
    re.IGNORECASE,
)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.|\x08")
MOVE = re.compile(r"\x1b\[[0-9;]*[A-HJf]")
LEVEL = "DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
HEADS = tuple(map(re.compile, (
    r"\s*\[[^\]]{0,20}\d\d:\d\d:\d\d[^\]]{0,60}\]:?\s{0,8}",
    r"\s*\[?(?:\d{4}[-/])?\d\d[-/]\d\d[T ]\d\d:\d\d[^\s\]]{0,20}\]?[\s:|-]{0,8}",
    r"\s*\[?\d\d-[A-Z][a-z]{2}-\d{2,4} \d\d:\d\d:\d\d[^\s\]]{0,20}\]?[\s:|-]{0,8}",
    r"\s*\[?\d\d:\d\d:\d\d[^\s\]]{0,20}\]?[\s:|-]{0,8}",
    r"(?P<glog>[IWEF])\d{4} [\d:.]{1,20} {1,8}\d{1,12} [\w./]{1,80}:\d+\]\s{0,8}",
    rf"\s*\[?[A-Za-z_][\w.]{{0,60}}\]?\s{{0,8}}[-|:]?\s{{0,8}}(?=\[?(?:{LEVEL})\b)",
    rf"\s*\[?(?P<level>{LEVEL})\]?[\s:|-]{{0,8}}"
    r"(?:\[?(?P<logger>[A-Za-z_][\w.]{0,60})(?::\d+)?(?:\]|:| -| \|)[\s:|-]{0,8}(?![\d.+]))?",
)))  # fmt: skip
"""The beginnings that loggers give a line."""
RANK = re.compile(
    r"\b(?:local_|global_)?rank\W{0,2}(\d+)\b\W{0,2}"
    r"|^\s*\[(?:default|gpu|worker|proc(?:ess)?) ?(\d+)\]:?"
    r"|^\s*\[(\d+)\]:|^\s*\[\d+,(\d+)\]<std\w+>:"
    r"|^\s*(\d+): (?=.{0,200}\b(?:step|iter|iteration|epoch)\b)",
    re.IGNORECASE,
)
BAR_BEFORE = re.compile(r"[|\]█━╸╺▏▎▍▌▋▊▉][^\w]*$")


class Token(NamedTuple):
    """A word, number, ratio or time of a line; `gap` is the text between it and the one before."""

    kind: str
    text: str
    gap: str
    start: int
    end: int


@dataclass
class Report:
    """The numbers of a line, and the place that it names.

    `count` of `total`: the step or the state of a bar. `labels`: the fold, trial or the like.
    `is_clean`: the line has no unknown word.
    """

    values: dict[str, float] = field(default_factory=dict)
    epoch: float | None = None
    count: int | None = None
    total: int | None = None
    is_bar: bool = False
    is_batch: bool = False
    """True if a word for batches stands before a count without a total."""
    is_of_a_test: bool = False
    """True if the count is that of an evaluation, whose state says nothing about steps."""
    title: tuple[str, ...] = ()
    """The words before the state of a bar."""
    labels: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()
    has_whole_epoch: bool = False
    """True if the epoch is written as a whole number, in a line that is no dictionary."""
    has_other_count: bool = False
    """True if an unknown name has a whole number, which may be a step."""
    is_clean: bool = True
    number_at: dict[str, int] = field(default_factory=dict)
    epoch_at: int | None = None
    count_at: int | None = None
    """The places of the numbers in the line."""
    names: dict[str, str] = field(default_factory=dict)
    """The name of each number as printed, with all up to the number; the step is one of them."""


def has_needle(text: str) -> bool:
    """Returns True if the text may hold a report or the heading of an epoch."""
    lowered = text.lower()
    return any(needle in lowered for needle in NEEDLES)


def without_escapes(text: str) -> str:
    """Returns the text without colors. Moves of the cursor become carriage returns."""
    if "\x1b" in text or "\x08" in text:
        return ESCAPE.sub("", MOVE.sub("\r", text))
    return text


class Reports:
    """Reads lines. Lines that differ only in their digits are read like the first of them."""

    def __init__(self) -> None:
        self._plans: dict[str, _Plan | None] = {}

    def of(self, state: str) -> Report | None:
        """Returns the report of a line, or of one state of a bar; None if it has no metric.

        The report of an epoch's heading has no values.
        """
        if len(state) > LONGEST_STATE:
            return None
        if "(" in state:
            state = WRAPPED.sub(r"\1", state)
        if " at " in state or " after " in state:
            state = AFTER.sub(r"\2 \3 \1 \4", state)
        shape = DIGITS.sub("0", state)
        if shape in self._plans:
            plan = self._plans[shape]
            report = None if plan is None else plan.report_of(state)
            if plan is None or report is not None:
                return report
        return self._read(state, shape)

    def _read(self, state: str, shape: str) -> Report | None:
        line = _without_head(state)
        if line is None:
            report, is_alike = None, True
        else:
            rest = _without_rank(line)
            report = None if rest is None else _report_of_line(rest)
            is_alike = rest == line
        is_clean = report is not None and report.is_clean
        may_differ = not is_alike or (not is_clean and RATIO.search(state) is not None)
        if may_differ or len(self._plans) == MOST_SHAPES:
            return report
        if report is None:
            self._plans[shape] = None
        elif (plan := _Plan.of(report, state, len(state) - len(line or ""))) is not None:
            self._plans[shape] = plan
        return report


class _Plan(NamedTuple):
    """Positions of a shape's numbers among all numbers of the line."""

    like: Report
    numbers: tuple[tuple[str, int], ...]
    epoch_index: int | None
    count_index: int | None

    @classmethod
    def of(cls, report: Report, state: str, offset: int) -> "_Plan | None":
        """Returns None if values decide how the line is read. `offset`: before the line proper."""
        order = {match.start(): index for index, match in enumerate(PLAIN.finditer(state))}
        places = [*report.number_at.values(), report.epoch_at, report.count_at]
        if report.labels or any(at is not None and at + offset not in order for at in places):
            return None
        if (report.epoch is None) != (report.epoch_at is None):
            return None
        numbers = {name: order[at + offset] for name, at in report.number_at.items()}
        epoch, count = (
            None if at is None else order[at + offset] for at in (report.epoch_at, report.count_at)
        )
        return cls(report, tuple(numbers.items()), epoch, count)

    def report_of(self, state: str) -> Report | None:
        """Returns None if the values may change how the line is read."""
        found, like = PLAIN.findall(state), self.like
        count = total = epoch = None
        places = (self.count_index, self.epoch_index)
        if any(at is not None and len(found[at]) > LONGEST_COUNT for at in places):
            return None
        if self.count_index is not None:
            count = int(found[self.count_index])
            total = None if like.total is None else int(found[self.count_index + 1])
            if total is not None and not 0 < count <= total:
                return None
        if self.epoch_index is not None:
            epoch = float(found[self.epoch_index])
        values = {name: float(found[index]) for name, index in self.numbers}
        report = Report.__new__(Report)  # copy.copy takes three times as long
        vars(report).update(vars(like), values=values, epoch=epoch, count=count, total=total)
        return report


def _report_of_line(line: str) -> Report | None:
    stripped = line.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        return _report_of_dict(line)
    return _Reader(line).read()


def _without_head(line: str) -> str | None:
    """Returns the line without time, level and logger. None if it is a warning or an error."""
    position = 0
    for _ in range(4):
        heads = (head.match(line, position) for head in HEADS)
        match = next(filter(None, heads), None)
        if match is None or match.end() == position:
            break
        named = match.groupdict()
        level = named.get("level") or named.get("glog") or "INFO"
        if level not in ("DEBUG", "INFO", "NOTICE", "I"):
            return None
        logger = (named.get("logger") or "").lower()
        is_known = logger in SPLITS or logger in EPOCHS or logger in STEPS or is_metric(logger)
        position = match.start("logger") if logger and is_known else match.end()
    return line[position:]


def _without_rank(line: str) -> str | None:
    """Returns the line without its rank. None for ranks other than 0."""
    match = RANK.search(line[:LONGEST_STATE])
    if match is None:
        return line
    if int(next(filter(None, match.groups()))) != 0:
        return None
    return line[: match.start()] + " " + line[match.end() :]


def _report_of_dict(text: str) -> Report | None:
    """Returns the report of a printed dictionary, such as Hugging Face's. It may not be nested."""
    if text.count("{") != 1 or "'train_runtime'" in text or '"train_runtime"' in text:
        return None
    entries = {match[1]: match for match in ENTRY.finditer(text)}
    if not any(map(is_metric, entries)):
        return None
    report = Report(shape=tuple(entries))
    # Other values may say what the numbers are of, such as 'split': 'val'.
    is_whole = len(entries) == len(KEY.findall(text))
    report.is_clean = is_whole and not OF_CONFIGURATIONS.intersection(entries)
    for name, entry in entries.items():
        number, start = float(entry[2]), entry.start(2)
        before = text[entry.start() : start]
        if name == "epoch":
            if len(entry[2]) <= LONGEST_COUNT and entry[2][:1].isdecimal():
                report.epoch, report.epoch_at = number, start
        elif name not in STEPS:
            report.values[name], report.number_at[name] = number, start
            report.names[name] = before
        elif entry[2].isdecimal() and len(entry[2]) <= LONGEST_COUNT:
            report.count, report.count_at = int(number), start
            report.names["step"] = before
    return report


@lru_cache(maxsize=4096)
def is_metric(name: str) -> bool:
    """Returns True for names such as loss, val_loss, train/acc and Acc@1."""
    lowered = name.lower()
    parts = [part for part in re.split(r"[_/@.\- ]+", lowered) if part]
    if not parts or "." in name or SETTINGS.intersection(parts):
        return False
    return parts[-1] in METRICS or parts[0] in METRICS or (
        len(parts) > 1 and parts[0] in SPLITS and parts[1] in METRICS
    )  # fmt: skip


@lru_cache(maxsize=4096)
def is_telling(name: str) -> bool:
    """Returns True for a loss, and for names with a split: no other program prints these."""
    return has_split(name) or any(word in name.lower() for word in ("loss", "ppl", "perplexity"))


@lru_cache(maxsize=4096)
def has_split(name: str) -> bool:
    """Returns True for names such as val_loss and train/acc."""
    return any(part in SPLITS for part in re.split(r"[_/.\- ]+", name.lower()))


@lru_cache(maxsize=4096)
def _is_unit(word: str) -> bool:
    head, slash, tail = word.lower().partition("/")
    return head in UNITS or (bool(slash) and tail in PACES)


def _is_place(word: str) -> bool:
    return word in EPOCHS or word in STEPS or word in BATCHES


def _is_mute(word: str) -> bool:
    """True for words that say nothing of their own."""
    return _is_place(word) or word in FILLERS or word in SPLITS or word in PARTS_OF_NAMES or (
        "/" in word and _is_unit(word))  # fmt: skip


def _tokens(line: str) -> Iterator[Token]:
    end = 0
    for match in TOKEN.finditer(line):
        text = match[0].rstrip("./'-") if match.lastgroup == "word" else match[0]
        start = match.start()
        yield Token(str(match.lastgroup), text, line[end:start], start, start + len(text))
        end = start + len(text)


class _Reader:
    """Reads the tokens of one line from left to right."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._tokens = [*_tokens(line)]
        self._report = Report()
        self._split = ""
        self._words: list[str] = []
        """Words that wait for their number: the parts of a name."""
        self._name_start = 0
        """The place of the last of them."""
        self._is_after_number = False
        self._is_bar_of_epochs = any(one.text.lower().endswith("/epoch") for one in self._tokens)

    def read(self) -> Report | None:
        report = self._report
        for index, token in enumerate(self._tokens):
            if token.kind == "word":
                self._word(token, index)
                continue
            words, self._words = self._words, []
            if token.kind == "number":
                self._number(token, index, words)
            elif token.kind == "ratio":
                self._ratio(token, index, words)
            self._is_after_number = True
        self._drop(self._words)
        report.shape = tuple(one.text.lower() for one in self._tokens if one.kind == "word")
        has_metric = any(map(is_metric, report.values))
        is_heading = report.is_clean and not report.values and self._is_heading()
        if report.is_of_a_test or (report.is_bar and not report.count):
            return None
        return report if has_metric or is_heading else None

    def _is_heading(self) -> bool:
        """True for `Epoch 2/3` and `Epoch 2:`, not for `epoch: 2`, which may be a setting."""
        if len(self._tokens) != 2:
            return False
        first, second = self._tokens
        is_first = first.text.lower() == "epoch" and not first.gap.strip("=-*# [")
        return is_first and not second.gap.strip(" [")

    def _word(self, token: Token, index: int) -> None:
        word = token.text.lower()
        if self._is_unit_here(token, index):
            return
        if token.gap.endswith("--") or token.gap.strip() in ("==", "!=", "<", ">"):
            self._report.is_clean = False
        self._is_after_number = False
        if word in LINKS and self._words and is_metric(self._words[-1]):
            self._report.is_clean = False
            return
        if self._words and token.gap.strip():
            self._drop(self._words)
            self._words = []
        if word in SPLITS:
            self._split = SPLITS[word]
        self._words.append(word)
        self._name_start = token.start

    def _is_unit_here(self, token: Token, index: int) -> bool:
        """True for the unit of the number before: `0.3s`, `200/2983 batches`, `?it/s`, `(ms)`."""
        word, gap = token.text.lower(), token.gap
        if "?" in gap or "(" in gap:
            return _is_unit(word)
        after = self._tokens[index + 1] if index + 1 < len(self._tokens) else None
        is_name = after is not None and after.kind != "word" and GAP.fullmatch(after.gap)
        if not self._is_after_number or (is_name and gap):
            return False
        return not gap or _is_unit(word) or (_is_place(word) and not gap.strip())

    def _drop(self, words: list[str]) -> None:
        """Take words without a number. The line is not clean if they say anything."""
        self._report.is_clean &= all(map(_is_mute, words))

    def _number(self, token: Token, index: int, words: list[str]) -> None:
        rest = self._line[token.end : token.end + 2]
        after = self._tokens[index + 1] if index + 1 < len(self._tokens) else None
        has_unit = (
            after is not None
            and after.kind == "word"
            and (not after.gap or ("/" in after.text and after.gap == " " and _is_unit(after.text)))
        )
        is_of_bar = rest.startswith("%|")
        if words and token.gap and GAP.fullmatch(token.gap) and not is_of_bar:
            self._pair(words, token, is_amount=has_unit)
            return
        self._is_bar_of_epochs |= is_of_bar and words[-1:] in (["epoch"], ["epochs"])
        self._drop(words)
        is_known_unit = after is not None and after.kind == "word" and _is_unit(after.text)
        self._report.is_clean &= has_unit or is_known_unit or rest[:1] == "%" or "(" in token.gap

    def _pair(self, words: list[str], token: Token, *, is_amount: bool) -> None:
        *before, word = words
        report = self._report
        is_place = _is_place(word)
        name = "" if is_place else self._name_of(before, word)
        if not all(map(_is_mute, before)):
            # A named number that is none of ours: `number of skipped iterations: 0`.
            is_other = (
                not name and not is_metric(word) and token.gap.strip(" '\")")[:1] in (":", "=")
            )
            report.is_clean &= is_other
            if is_other:
                return
        if word in EPOCHS:
            self._take_epoch(token.text, token.start)
        elif is_place:
            self._take_count(token.text, None, word, token.start)
            is_of_a_test = bool(before) and SPLITS.get(before[-1], "train") != "train"
            report.is_of_a_test |= is_of_a_test  # `eval step 10` counts the evaluation's
        elif word in LABELS:
            report.labels += (f"{word} {token.text}",)
        elif not name and not is_amount and not is_metric(word) and token.text.isdecimal():
            report.has_other_count = True
            report.names.setdefault("step", self._line[self._name_start : token.start])
        elif name and not is_amount:
            report.values.setdefault(name, float(token.text))
            report.number_at.setdefault(name, token.start)
            report.names.setdefault(name, self._line[self._name_start : token.start])

    def _name_of(self, before: list[str], word: str) -> str:
        """The name of a number after these words; "" if it is of no interest."""
        own = [one for one in before if one in PARTS_OF_NAMES]
        joined = "_".join([*own, word])
        if (usual := COMPANIONS.get(joined)) is not None:
            return usual
        if not is_metric(word):
            return ""
        if not self._split or has_split(word):
            return joined
        return f"{self._split}_{joined}"

    def _ratio(self, token: Token, index: int, words: list[str]) -> None:
        count, total = map(int, token.text.split("/"))
        word = words[-1] if words else ""
        is_after_bar = bool(BAR_BEFORE.search(token.gap)) or not index
        if word in EPOCHS and not is_after_bar and GAP.fullmatch(token.gap):
            self._take_epoch(str(count), token.start)
        elif word in STEPS or word in BATCHES:
            self._take_count(str(count), total, word, token.start)
        elif is_metric(word):  # a share, such as 9847/10000
            self._drop(words[:-1])
        else:
            is_of_other = word and not _is_mute(word)
            is_bracketed = token.gap.rstrip().endswith(("[", "("))
            is_state = is_after_bar or is_bracketed or bool(words) or self._is_after_number
            if total >= max(1, count) and is_state and (is_after_bar or not is_of_other):
                self._take_state(count, total, index)
            elif not is_of_other:
                self._report.is_clean = False

    def _take_epoch(self, text: str, start: int) -> None:
        report = self._report
        if len(text) > LONGEST_COUNT or not text[:1].isdecimal():
            report.is_clean = False
        elif report.epoch is None:
            report.epoch, report.epoch_at = float(text), start
            report.has_whole_epoch = text.isdecimal()

    def _take_state(self, count: int, total: int, index: int) -> None:
        """Take the state of a bar."""
        report = self._report
        before = [one.text.lower() for one in self._tokens[:index] if one.kind == "word"]
        if self._is_bar_of_epochs:
            report.is_clean &= count > 0
            if report.epoch is None:
                report.epoch, report.has_whole_epoch = float(count), True
        elif report.count is None:
            report.count, report.total, report.is_bar = count, total, True
            report.count_at = self._tokens[index].start
            report.title = tuple(before)
            report.is_of_a_test = self._split not in ("", "train")

    def _take_count(self, text: str, total: int | None, word: str, start: int) -> None:
        """Take a count after a word for steps or batches. One without a total wins."""
        report = self._report
        if not text.isdecimal() or len(text) > LONGEST_COUNT:
            report.is_clean = False
            return
        if report.count is not None and (total is not None or report.total is None):
            return
        report.count, report.total, report.is_bar = int(text), total, False
        report.count_at = start
        report.is_of_a_test = self._split not in ("", "train") and total is not None
        report.is_batch = word in BATCHES and total is None
        if word in STEPS and total is None:
            report.names["step"] = self._line[self._name_start :].partition(text)[0]
