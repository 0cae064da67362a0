"""Labelling session: the documents still to be shown, the votes, and the model trained from them."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpt2train.errors import UserError
from gpt2train.quality.documents import Document
from gpt2train.quality.model_file import write_model
from gpt2train.quality.training import MIN_VOTES, train, with_precision
from gpt2train.quality.votes import Vote, VoteFile

MAX_SHOWN = 20_000  # characters of a document on the page
CURVE_POINTS = 200


class Session:
    """State of the page; its methods may be called from several threads.

    Args:
        kept: documents that the cleaning kept, in the order in which they are shown.
        rejected: documents that it rejected.
        votes: file of the votes.
        model: file to which a trained model is written.
    """

    def __init__(self, kept: Sequence[Document], rejected: Sequence[Document], votes: VoteFile, model: Path) -> None:
        self._documents = {"kept": list(kept), "rejected": list(rejected)}
        self._by_id = {document.id: document for document in [*kept, *rejected]}
        self._votes, self._model = votes, model
        self._passed: set[str] = set()  # shown and skipped in this session
        self._lock = threading.Lock()

    def state(self) -> dict[str, Any]:
        """Return the counts of votes, and the next document of each side (None after the last)."""
        with self._lock:
            return self._state()

    def vote(self, id: str, vote: str | None) -> dict[str, Any]:
        """Store a vote (`good`, `bad`, or None to withdraw it), or skip a document (`skip`); return the new state.

        Raises:
            UserError: there is no such document or vote, or the file is not writable.
        """
        with self._lock:
            document = self._by_id.get(id)
            if document is None or vote not in ("good", "bad", "skip", None):
                raise UserError("no such document or vote; load the page again")
            if vote == "skip":
                self._passed.add(id)
            else:
                self._passed.discard(id)
                if vote is not None or id in self._votes.votes:
                    self._votes.add(Vote(id, document.url, document.reason, vote, document.text))  # type: ignore[arg-type]
            return self._state()

    def train(self, precision: float) -> dict[str, Any]:
        """Train a model on all votes, write it, and return its evaluation.

        Raises:
            UserError: there are too few votes, no threshold has the precision, or the file is not writable.
        """
        if not 0 <= precision <= 1:
            raise UserError(f"a precision of {precision:g}: give one from 0 to 1")
        with self._lock:
            votes = list(self._votes.votes.values())
        model, evaluation = train(votes)
        model = with_precision(model, evaluation, precision)
        write_model(self._model, model)
        points = evaluation.curve[:: -(-len(evaluation.curve) // CURVE_POINTS)]
        return {
            **model.about,
            "auc_error": round(evaluation.auc_error, 4),
            "threshold": model.threshold,
            "curve": [asdict(point) for point in points],
            "model": str(self._model),
        }

    def _state(self) -> dict[str, Any]:
        votes = self._votes.votes
        seen = votes.keys() | self._passed
        following = {
            side: next((self._shown(document) for document in documents if document.id not in seen), None)
            for side, documents in self._documents.items()
        }
        counts = Counter(vote.vote for vote in votes.values())
        return {"good": counts["good"], "bad": counts["bad"], "needed": MIN_VOTES, "next": following}

    @staticmethod
    def _shown(document: Document) -> dict[str, Any]:
        cut = len(document.text) - MAX_SHOWN
        return {**asdict(document), "text": document.text[:MAX_SHOWN], "characters": len(document.text), "cut": cut > 0}
