"""Re-score a whole leaderboard history with the cBMM on Spark and Delta Lake."""

__version__ = "0.1.0"
