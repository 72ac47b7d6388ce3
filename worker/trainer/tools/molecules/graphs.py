"""What is kept of a molecule: its graph, with whole numbers for atoms and bonds; its scaffold."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker.trainer.data.formats.packed_files import EDGE_VALUES, EDGES, NODES

ATOM_FEATURES = (
    *("element", "bonds", "charge", "hydrogens"),
    *("hybridization", "aromatic", "in_ring", "chirality"),
)
BOND_FEATURES = ("kind", "conjugated", "in_ring", "stereo")
NEUTRAL = 8
"""What a charge of 0 is written as: none is below 0 then."""
MOST = 15
"""Of bonds and hydrogens, and of charges to either side of NEUTRAL less one: larger ones are so."""
BOND_KINDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
TRAINING, VALIDATION, TEST = 0, 1, 2
SHARES = (0.8, 0.1)
"""Of the training and of the validation, where scaffolds say the parts."""


def graph_of(mol: Any) -> dict[str, NDArray[Any]]:
    """Nodes (atoms, 8) and edge values (bonds, 4) of uint8, by ATOM_FEATURES and BOND_FEATURES;
    each bond is there once.
    """
    atoms = [
        (
            atom.GetAtomicNum(),
            min(atom.GetDegree(), MOST),
            min(max(atom.GetFormalCharge() + NEUTRAL, 0), 2 * NEUTRAL),
            min(atom.GetTotalNumHs(), MOST),
            int(atom.GetHybridization()),
            atom.GetIsAromatic(),
            atom.IsInRing(),
            int(atom.GetChiralTag()),
        )
        for atom in mol.GetAtoms()
    ]
    bonds = list(mol.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    said = [
        (_kind(bond), bond.GetIsConjugated(), bond.IsInRing(), int(bond.GetStereo()))
        for bond in bonds
    ]
    return {
        NODES: np.array(atoms, np.uint8).reshape(-1, len(ATOM_FEATURES)),
        EDGES: np.array(ends, np.uint16).reshape(-1, 2),
        EDGE_VALUES: np.array(said, np.uint8).reshape(-1, len(BOND_FEATURES)),
    }


def _kind(bond: Any) -> int:
    """1 to 4; 0 is any other."""
    name = str(bond.GetBondType()).rpartition(".")[2]
    return BOND_KINDS.index(name) + 1 if name in BOND_KINDS else 0


def scaffold_of(mol: Any) -> str:
    """The rings of a molecule and what links them, as a SMILES (Bemis and Murcko, 1996); empty
    where it has no ring.
    """
    from rdkit.Chem.Scaffolds import MurckoScaffold  # an extra, for this alone

    murcko: Any = MurckoScaffold
    return str(murcko.MurckoScaffoldSmiles(mol=mol))


def parts_by_scaffold(
    scaffolds: Sequence[str], shares: tuple[float, float] = SHARES
) -> NDArray[np.int8]:
    """The part of each molecule: all of a scaffold are in one, the most common ones in the
    training, so that validation and test have molecules of another kind.
    """
    parts, taken = dict[str, int](), [0, 0, 0]
    wanted = [share * len(scaffolds) for share in shares]
    by_size = sorted(Counter(scaffolds).items(), key=lambda one: (-one[1], one[0]))
    for scaffold, count in by_size:
        fitting = (part for part in (0, 1) if taken[part] + count <= wanted[part])
        # Something has to be trained on, however large the first one is.
        parts[scaffold] = next(fitting, TEST) if taken[TRAINING] else TRAINING
        taken[parts[scaffold]] += count
    return np.array([parts[one] for one in scaffolds], np.int8)
