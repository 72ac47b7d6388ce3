"""A small network by scikit-learn, which has no steps to speak of and saves at its end."""

import joblib
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

digits, labels = load_digits(return_X_y=True)
model = MLPClassifier((32,), max_iter=15, random_state=0, verbose=True)
model.fit(digits / 16, labels)
joblib.dump(model, "model.joblib")
print("score", model.score(digits / 16, labels), flush=True)
