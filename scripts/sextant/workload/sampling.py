"""Fast weighted draws: an index table made once, and rows of a frame taken by blocks."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api.internals import create_dataframe_from_blocks

from sextant.workload.seeds import Seed


@dataclass(frozen=True)
class WeightedChoice:
    """Draws positions with replacement, in proportion to weights, by inverting their sum.

    A guide table (Chen and Asau, 1974) says where the search for a uniform number begins:
    [0, 1) is cut into a power of two of equal cells, and where a whole cell belongs to one
    position there is nothing left to search. Positions are those of a binary search.
    """

    cumulative: np.ndarray
    """Sum of the weights up to each position; infinite from the last that has a weight."""
    total: float
    guide: np.ndarray
    """First position that a number in each cell can mean."""

    @classmethod
    def of(cls, weights: np.ndarray) -> Self:
        """Prepare draws by `weights`, none negative and at least one positive."""
        cumulative = np.cumsum(weights, dtype=float)
        total = float(cumulative[-1])
        n_cells = 1 << int(len(weights) - 1).bit_length()
        cell_starts = np.arange(n_cells) / n_cells * total
        # A number times the total can round up to the total, which no position exceeds.
        cumulative[np.flatnonzero(weights)[-1] :] = np.inf
        guide = np.searchsorted(cumulative, cell_starts, side="right")
        return cls(cumulative, total, guide)

    def draw(self, n: int, seed: Seed) -> np.ndarray:
        """Return `n` independent positions."""
        uniform = np.random.default_rng(seed).random(n)
        drawn = uniform * self.total
        # The number of cells is a power of two: the product is exact, the cell the right one.
        positions = self.guide.take((uniform * len(self.guide)).astype(np.intp))
        later = np.flatnonzero(self.cumulative.take(positions) <= drawn)
        positions[later] = np.searchsorted(self.cumulative, drawn[later], side="right")
        return positions


@dataclass(frozen=True)
class ColumnBlocks:
    """A frame's columns, those of one type side by side, so that rows are taken per type.

    For a thousand rows, a frame made from separate columns costs more than all else in a draw;
    `create_dataframe_from_blocks` is pandas's public way around that.
    """

    columns: pd.Index
    blocks: list[tuple[Any, np.ndarray]]
    """Array of (rows, columns), or an extension array of rows; the places of its columns."""

    @classmethod
    def of(cls, frame: pd.DataFrame) -> Self:
        """Copy the columns of `frame`."""
        places: dict[Any, list[int]] = {}
        for place, dtype in enumerate(frame.dtypes):
            key = dtype if isinstance(dtype, np.dtype) else place
            places.setdefault(key, []).append(place)
        blocks = [(_block(frame, group), np.array(group, np.intp)) for group in places.values()]
        return cls(frame.columns, blocks)

    def take(self, rows: np.ndarray) -> pd.DataFrame:
        """Return these rows, numbered from 0; what is returned shares no memory."""
        taken = [(_rows(block, rows), place) for block, place in self.blocks]
        return create_dataframe_from_blocks(
            taken, index=pd.RangeIndex(len(rows)), columns=self.columns
        )


def _rows(block: Any, rows: np.ndarray) -> Any:
    """Take rows of a block, in the shape that pandas has them: (columns, rows)."""
    return block.take(rows, axis=0).T if isinstance(block, np.ndarray) else block.take(rows)


def _block(frame: pd.DataFrame, places: list[int]) -> Any:
    if isinstance(frame.dtypes.iloc[places[0]], np.dtype):
        return np.stack([frame.iloc[:, place].to_numpy() for place in places], axis=1)
    return frame.iloc[:, places[0]].array
