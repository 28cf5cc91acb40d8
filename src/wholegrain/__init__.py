"""Subject-level differential privacy for cross-silo federated learning."""

from wholegrain.data.clinics import clinics as clinics
from wholegrain.data.dataset import Dataset as Dataset
from wholegrain.data.femnist import femnist as femnist
from wholegrain.data.mnist import mnist_writers as mnist_writers
from wholegrain.data.nlswork import nlswork as nlswork
from wholegrain.data.plays import plays as plays
from wholegrain.data.shakespeare import shakespeare as shakespeare
from wholegrain.data.subjects import SubjectData as SubjectData
from wholegrain.data.subjects import subject_codes as subject_codes
from wholegrain.errors import WholegrainError as WholegrainError
from wholegrain.policies.plan import Plan as Plan
from wholegrain.privacy.definitions import Budget as Budget
from wholegrain.privacy.definitions import Guarantee as Guarantee
from wholegrain.privacy.definitions import Standing as Standing
from wholegrain.privacy.definitions import Unit as Unit
from wholegrain.runs.runner import Run as Run
from wholegrain.runs.runner import train as train
from wholegrain.runs.spec import RunSpec as RunSpec

__version__ = "0.2.0"
