"""Every exception of the project, split by who must act.

    BernsteinError
    ├── UsageError               you asked wrongly: fix the call, the plan or the setting
    │   ├── CanonicalError       a value that has no canonical JSON spelling
    │   ├── YamlError            a file in YAML, with file, line and column
    │   │   ├── PlanError        a plan
    │   │   └── PolicyError      a policy of scores
    │   ├── SettingsError        a BERNSTEIN_* variable
    │   ├── UnknownRunError      no such run, or more than one
    │   ├── UnsafePathError      a path that leaves its folder
    │   ├── WorkspaceError       a folder that cannot be copied or brought over
    │   ├── KeyUnavailableError  a key that cannot be read or made
    │   └── ModelUnavailableError  a model that cannot be asked from here
    ├── ProviderError            the provider failed; recorded, and raised again on replay
    ├── RecordedToolError        a tool failed when it was recorded, with an exception of its own
    ├── BudgetError              the run has spent what its plan allows
    ├── ReplayMissError          the replay left its recording: the run must stop
    ├── DivergedError            a replay that is not what its recording was
    ├── RecordingError           a recording that does not match its journal: not served
    ├── StaleDecisionError       a decision on what does not wait, or not as it was seen
    ├── SealError                a run that cannot be sealed
    ├── BundleError              a bundle that cannot be made or taken
    ├── ProofError               a proof, checkpoint or spine that does not hold
    └── JournalError             a journal that cannot be appended to

What is wrong with evidence is not raised but returned as a verdict: finding it is the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping


class BernsteinError(Exception):
    """The root of the tree; ``exit_code`` is what a command ends with when nobody caught it."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[object, ...]:
        # By its facts, not by its arguments: worker processes hand errors to their parents.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[BernsteinError], args: tuple[object, ...], facts: dict[str, object]
) -> BernsteinError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class UsageError(BernsteinError):
    """You asked wrongly."""

    exit_code = 2


class CanonicalError(UsageError, ValueError):
    """A value without a canonical JSON spelling; ``path`` names the place inside the value."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class YamlError(UsageError):
    """A file in YAML that is not what it should be; carries file, line and column (from 1)."""

    def __init__(self, message: str, *, file: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}")
        self.file = file
        self.line = line
        self.column = column


class PlanError(YamlError):
    """A plan that cannot be read as one."""


class PolicyError(YamlError):
    """A policy of scores that cannot be read as one."""


class SettingsError(UsageError):
    """A setting with a value that it cannot take."""


class UnknownRunError(UsageError):
    """A run that was asked for and is not there, or is not the only one."""


class UnsafePathError(UsageError):
    """A path from outside that would leave the folder it belongs to."""


class WorkspaceError(UsageError):
    """A folder that cannot become a workspace, or whose changes cannot be brought over."""


class KeyUnavailableError(UsageError):
    """A key that cannot be read or made: nothing is signed or checked with it."""


class ModelUnavailableError(UsageError):
    """A model that cannot be asked from here: no package, no key, no such provider."""


class ProviderError(BernsteinError):
    """A provider's failure, as it is recorded and raised again.

    Attributes:
        error_class: The provider's or SDK's name of the failure.
        status: The HTTP status, or None for a failure below HTTP (a dropped connection).
        text: What the provider said.
    """

    def __init__(self, error_class: str, status: int | None, text: str) -> None:
        where = error_class if status is None else f"{error_class}, HTTP {status}"
        super().__init__(f"the provider failed ({where}): {text}")
        self.error_class = error_class
        self.status = status
        self.text = text

    @property
    def is_retryable(self) -> bool:
        """Whether asking again can help: no status (connection), 408, 409, 429 or 5xx."""
        return self.status is None or self.status in (408, 409, 429) or self.status >= 500


class RecordedToolError(BernsteinError):
    """A tool that failed when it was recorded, with an exception that is not built in."""


class BudgetError(BernsteinError):
    """A call that is not made, since the run has spent its budget."""


class ReplayMissError(BernsteinError, RuntimeError):
    """A request that the recording has no (further) answer for.

    Attributes:
        key: The replay key that was looked up, 64 hex digits.
        model: The model that was asked for.
        recorded: How many answers this key has in its lane.
        requested: How often it has been asked for, this time counted.
        nearest: The closest recorded call as a JSON object (lane, seq, differing fields, text
            diff), or None.
        reason: never_recorded, exhausted, stale_key_scheme or no_recording.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        key: str,
        model: str,
        recorded: int = 0,
        requested: int = 1,
        nearest: Mapping[str, object] | None = None,
        reason: str,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.model = model
        self.recorded = recorded
        self.requested = requested
        self.nearest = nearest
        self.reason = reason


class DivergedError(BernsteinError):
    """A replay whose journal is not that of its recording."""


class RecordingError(BernsteinError):
    """A recording that does not match its journal, or cannot be read: it is not served."""


class ForgottenBodyError(RecordingError):
    """A body that a recording refers to and that is not there: destroyed, or not taken along."""


class BundleError(BernsteinError):
    """A bundle that cannot be made, or that is not taken."""


class SealError(BernsteinError):
    """A run that cannot be sealed as it is."""


class ProofError(BernsteinError):
    """A proof, checkpoint or spine that does not hold."""


class StaleDecisionError(BernsteinError):
    """A decision on a row that waits for none, or is not the one that its author saw."""


class JournalError(BernsteinError):
    """A journal that cannot be appended to."""
