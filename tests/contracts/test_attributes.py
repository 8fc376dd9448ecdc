"""The section "Attributes" of every estimator against what a fitted one has, and a loaded one."""

import inspect
import re
import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

import seqfield as sf

X, Y = sf.make_galaxy(8, random_state=0)
MODELS = {
    "CRF": sf.CRF(),
    "StructuredPerceptron": sf.StructuredPerceptron(random_state=0),
    "dual perceptron": sf.StructuredPerceptron(kernel="rbf", random_state=0),
    "SequenceBoost": sf.SequenceBoost(max_iter=5),
    "AdaBoost": sf.AdaBoost(max_iter=5),
    "HMM": sf.HMM(),
    "GPSC": sf.GPSC("rbf"),
    "sparse GPSC": sf.GPSC("rbf", method="sparse", n_coordinates=5),
    "GPSC of sequences": sf.GPSC("rbf", method="sequence", n_coordinates=5),
    "Laplace": sf.GPSC("rbf", posterior="laplace", n_samples=3, random_state=0),
    "KernelCRF": sf.KernelCRF("rbf", n_cliques=3),
    "HMSVM": sf.HMSVM("rbf", random_state=0),
    "GPSL": sf.GPSL("rbf", learn_kernel=False),
    "GPStruct": sf.GPStruct("rbf", n_steps=8, n_samples=3, learn_kernel=True, random_state=0),
    "StructuredSVGP": sf.StructuredSVGP("rbf", 5, max_iter=2, random_state=0),
    "Tagger": sf.Tagger(n_folds=2, random_state=0),
}
#: those that one form of an estimator has, or one kind of emissions
OF_A_FORM = {
    "StructuredPerceptron": {"kernel_", "n_tokens_", "n_kept_"},
    "dual perceptron": {"theta_"},
    "HMM": {"log_emission_"},
    "GPSC": {"log_evidence_", "log_evidence_error_", "path_", "n_chosen_", "support_"},
    "sparse GPSC": {"log_evidence_", "log_evidence_error_", "support_"},
    "GPSC of sequences": {"log_evidence_", "log_evidence_error_"},
    "Laplace": {"path_", "n_chosen_", "support_"},
}


@pytest.mark.parametrize("name", MODELS)
def test_attributes_are_there_or_said_to_be_in_no_file(name, tmp_path):
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):
        model = MODELS[name].fit(X, Y)
    text = inspect.getdoc(type(model)).partition("Attributes\n")[2].partition("\n\n")[0]
    told = set(re.findall(r"\b(\w+_)(?= :|, )", text)) - OF_A_FORM.get(name, set())
    assert told
    assert {one for one in told if not hasattr(model, one)} == set()
    model.save(tmp_path / "m.sf")
    again = sf.load(tmp_path / "m.sf")
    for one in {*told, *vars(model)}:
        # an entry goes on as long as its lines are set in
        if not hasattr(again, one):
            assert re.search(rf"\b{one} :(?:(?!\n\S)[\s\S])*?not in\s+model\s+files", text), one
