"""The tables that go out: abilities, item parameters, and the runs that made them."""

from __future__ import annotations

from dataclasses import replace

from cbmm_spark.tables.inputs import RUN_ID, SCALE
from cbmm_spark.tables.spec import (
    CORRELATION,
    COUNT,
    FRACTION,
    FROM_ONE,
    NOT_EMPTY,
    NOT_NEGATIVE,
    Column,
    TableSpec,
    one_of,
)

RUN_STATUSES = ("running", "published", "not_converged", "failed")
ABILITY_STATUSES = ("ok", "all_correct", "all_wrong", "few_items", "no_responses")
FLAG_REASONS = (
    "all_correct",
    "all_wrong",
    "uninformative",
    "negative_discrimination",
    "misfit",
    "duplicate",
    "few_responses",
    "drifted",
)

SCALE_FLAG_REASONS = ("few_items", "single_model", "no_signal", "at_bound", "disconnected")

_SCORED_ON = Column("scored_on", "date", "Day (UTC) the leaderboard was scored for", required=True)
_MADE_BY = "cbmm-spark rescore"
_COMPONENT = Column(
    "component", "int", "Number of the connected set of models and items; abilities compare within one only", FROM_ONE
)

ABILITIES = TableSpec(
    name="abilities",
    comment="One row per run, scale and model. Join with runs where status is published. Written by rescore.",
    made_by=_MADE_BY,
    key=("run_id", "scale", "model_id"),
    partition_by=("scored_on",),
    columns=(
        RUN_ID,
        _SCORED_ON,
        SCALE,
        Column("model_id", "string", "Name of the model with its revision", NOT_EMPTY, required=True),
        Column(
            "ability",
            "double",
            "Ability theta on the scale of the reference run (run_scales), whose own models of status ok have mean 0 "
            "and standard deviation 1; larger is better",
        ),
        Column("ability_se", "double", "Standard error of the ability, same unit", NOT_NEGATIVE),
        Column("ability_lower", "double", "Lower end of the interval of the ability at the configured level"),
        Column("ability_upper", "double", "Upper end of the interval of the ability at the configured level"),
        Column("rank", "int", "Rank by ability, 1 is the best, ties share the smaller rank", FROM_ONE),
        Column("rank_lower", "int", "Best rank within the interval of the rank", FROM_ONE),
        Column("rank_upper", "int", "Worst rank within the interval of the rank", FROM_ONE),
        Column("tier", "int", "Group of models that cannot be told apart, 1 is the best", FROM_ONE),
        Column("accuracy", "double", "Mean score over the answered items of the scale", FRACTION),
        Column("accuracy_lower", "double", "Lower end of the Wilson interval of the accuracy", FRACTION),
        Column("accuracy_upper", "double", "Upper end of the Wilson interval of the accuracy", FRACTION),
        Column("accuracy_rank", "int", "Rank by accuracy, 1 is the best, ties share the smaller rank", FROM_ONE),
        Column(
            "rank_shift",
            "int",
            "accuracy_rank - rank: positive where the ability ranks the model higher than accuracy does",
        ),
        Column("expected_accuracy", "double", "Accuracy the model would have on all items of the scale", FRACTION),
        Column("n_items", "int", "Items of the scale with a verdict for the model", COUNT, required=True),
        Column("coverage", "double", "n_items as a share of the items of the scale", FRACTION),
        Column("outfit", "double", "Mean squared standardised residual, 1 is expected", NOT_NEGATIVE),
        Column("infit", "double", "Information-weighted mean squared residual, 1 is expected", NOT_NEGATIVE),
        _COMPONENT,
        Column(
            "status", "string", "Whether the ability can be read as it stands", one_of(*ABILITY_STATUSES), required=True
        ),
        Column("first_evaluated_at", "timestamp", "Earliest evaluation of the model on the scale, UTC"),
        Column("last_evaluated_at", "timestamp", "Latest evaluation of the model on the scale, UTC"),
    ),
    row_checks={
        "ability_interval": "ability_lower IS NULL OR ability_upper IS NULL OR ability_lower <= ability_upper",
        "rank_interval": "rank_lower IS NULL OR rank_upper IS NULL OR rank_lower <= rank_upper",
        "accuracy_interval": "accuracy_lower IS NULL OR accuracy_upper IS NULL OR accuracy_lower <= accuracy_upper",
        "rank_shift_is_difference": "rank_shift IS NULL OR rank_shift <=> (accuracy_rank - rank)",
    },
)

ITEM_PARAMETERS = TableSpec(
    name="item_parameters",
    comment="One row per run, scale and item. Join with runs where status is published. Written by rescore.",
    made_by=_MADE_BY,
    key=("run_id", "scale", "benchmark", "item_id"),
    partition_by=("scored_on",),
    columns=(
        RUN_ID,
        _SCORED_ON,
        SCALE,
        Column("benchmark", "string", "Name of the benchmark with its version", NOT_EMPTY, required=True),
        Column("item_id", "string", "Name of the item within its benchmark", NOT_EMPTY, required=True),
        Column("discrimination", "double", "Slope a in logit(p) = a * ability + b; never negative", NOT_NEGATIVE),
        Column("easiness", "double", "Intercept b in logit(p) = a * ability + b, with plus sign: larger is easier"),
        Column("difficulty", "double", "-b/a, the ability at which half succeed: larger is harder; null where a = 0"),
        Column("discrimination_se", "double", "Standard error of the discrimination", NOT_NEGATIVE),
        Column("easiness_se", "double", "Standard error of the easiness", NOT_NEGATIVE),
        Column("n_models", "int", "Models with a verdict on the item", COUNT, required=True),
        Column("accuracy", "double", "Mean score over these models", FRACTION),
        Column(
            "item_rest_correlation", "double", "Correlation of the score with the score on the other items", CORRELATION
        ),
        Column("infit", "double", "Information-weighted mean squared residual, 1 is expected", NOT_NEGATIVE),
        Column("outfit", "double", "Mean squared standardised residual, 1 is expected", NOT_NEGATIVE),
        Column(
            "information",
            "double",
            "Fisher information at the reference ability, per squared unit of ability",
            NOT_NEGATIVE,
        ),
        Column(
            "max_information", "double", "Largest Fisher information over all abilities, a squared over 4", NOT_NEGATIVE
        ),
        _COMPONENT,
        Column("is_flagged", "boolean", "Whether somebody should look at the item", required=True),
        Column(
            "flag_reasons",
            "string",
            "Reasons joined by ';' out of " + ", ".join(FLAG_REASONS) + "; null where not flagged",
            f"{{c}} RLIKE '^({'|'.join(FLAG_REASONS)})(;({'|'.join(FLAG_REASONS)}))*$'",
        ),
    ),
    row_checks={
        "difficulty_has_slope": "difficulty IS NULL OR (discrimination IS NOT NULL AND discrimination > 0)",
        "flag_has_reason": "is_flagged = (flag_reasons IS NOT NULL)",
    },
)

RUNS = TableSpec(
    name="runs",
    comment=(
        "One row per run. It turns published after all results of the run are written; at most one run of a day "
        "is published. Written by rescore."
    ),
    made_by=_MADE_BY,
    key=("run_id",),
    columns=(
        RUN_ID,
        _SCORED_ON,
        Column("status", "string", "running, published, not_converged or failed", one_of(*RUN_STATUSES), required=True),
        Column("started_at", "timestamp", "Start of the run, UTC", required=True),
        Column("finished_at", "timestamp", "End of the run, UTC; null while it runs"),
        Column("responses_version", "long", "Version of responses the run was made from", COUNT),
        Column("config", "string", "Configuration of the run as JSON", required=True, statistics=False),
        Column("package_version", "string", "Version of cbmm-spark"),
        Column("spark_version", "string", "Version of Spark"),
        Column("error", "string", "Why the run was not published", statistics=False),
        Column("heartbeat_at", "timestamp", "Last sign of life of the run, UTC; its claim on the day counts from it"),
        Column("owner", "string", "Process that runs it, host:pid:place:born", statistics=False),
        Column(
            "config_hash",
            "string",
            "Hash of all configuration that decides abilities; a dead run is resumed where it is the same",
            statistics=False,
        ),
        Column(
            "gates",
            "string",
            "What the gates before publishing compared and found, as JSON; null where the run did not get there",
            statistics=False,
        ),
    ),
)

RUN_SCALES = TableSpec(
    name="run_scales",
    comment="One row per run and scale: size, convergence and quality of the fit. Written by rescore.",
    made_by=_MADE_BY,
    key=("run_id", "scale"),
    columns=(
        RUN_ID,
        SCALE,
        Column("n_models", "int", "Models of the scale", COUNT, required=True),
        Column("n_items", "int", "Items of the scale", COUNT, required=True),
        Column("n_responses", "long", "Responses with a verdict", COUNT, required=True),
        Column("iterations", "int", "Outer iterations done", COUNT),
        Column("converged", "boolean", "Whether the tolerances were met"),
        Column("objective", "double", "Penalised negative log-likelihood at the end, in nats"),
        Column("log_loss", "double", "Mean negative log-likelihood of a response, in nats", NOT_NEGATIVE),
        Column(
            "accuracy_log_loss",
            "double",
            "The same of the baseline that predicts each model's mean score",
            NOT_NEGATIVE,
        ),
        Column("kkt_residual", "double", "Largest violation of the optimality conditions", NOT_NEGATIVE),
        Column("node_error", "double", "Relative error of the objective from evaluating it at nodes", NOT_NEGATIVE),
        Column("ability_accuracy_spearman", "double", "Rank correlation of ability and accuracy", CORRELATION),
        Column("discrimination_mean", "double", "Mean discrimination of the items", NOT_NEGATIVE),
        Column("discrimination_sd", "double", "Standard deviation of the discrimination of the items", NOT_NEGATIVE),
        Column("uninformative_items", "int", "Items with discrimination 0", COUNT),
        Column(
            "link_slope",
            "double",
            "A in ability = A * z + B, z the ability standardised over the run's own models of status ok",
        ),
        Column("link_intercept", "double", "B in ability = A * z + B"),
        Column(
            "n_anchors",
            "int",
            "Items the link rests on; null where it rests on models and where the run is its own reference",
            COUNT,
        ),
        Column("n_drifted", "int", "Common items left out of the link because they drifted", COUNT),
        Column(
            "flag_reasons",
            "string",
            "Why to read the scale with care, joined by ';' out of " + ", ".join(SCALE_FLAG_REASONS) + "; null where "
            "nothing is odd",
        ),
        Column(
            "reference_run_id",
            "string",
            "Run that defines the scale: runs with the same one are comparable; null where linking is off",
        ),
        Column("link_run_id", "string", "Run the link rests on: the reference or one linked to it"),
        Column("items_from_run_id", "string", "Run whose item parameters were kept; null where items were fitted"),
        Column("gauge_shift", "double", "m in fitted ability = m + c * ability: the gauge in which the penalty holds"),
        Column("gauge_stretch", "double", "c in fitted ability = m + c * ability"),
        Column(
            "n_anchor_models",
            "int",
            "Models with unchanged answers that the link rests on; null where it rests on items or there is none",
            COUNT,
        ),
    ),
)

RUN_ITERATIONS = TableSpec(
    name="run_iterations",
    comment="One row per run, scale and outer iteration. Written by rescore.",
    made_by=_MADE_BY,
    key=("run_id", "scale", "iteration"),
    columns=(
        RUN_ID,
        SCALE,
        Column("iteration", "int", "Number of the outer iteration", COUNT, required=True),
        Column("objective", "double", "Penalised negative log-likelihood, in nats"),
        Column(
            "max_ability_change",
            "double",
            "Largest change of an ability in this iteration, in its standard errors",
            NOT_NEGATIVE,
        ),
        Column("seconds", "double", "Wall-clock time of the iteration", NOT_NEGATIVE),
    ),
)

LATEST_ABILITIES = replace(
    ABILITIES,
    name="latest_abilities",
    comment="abilities of the last published run only, for tools that cannot join. Replaced in one commit.",
    partition_by=(),
)
LATEST_ITEM_PARAMETERS = replace(
    ITEM_PARAMETERS,
    name="latest_item_parameters",
    comment="item_parameters of the last published run only, for tools that cannot join. Replaced in one commit.",
    partition_by=(),
)

RESULTS = (ABILITIES, ITEM_PARAMETERS, RUNS, RUN_SCALES, RUN_ITERATIONS, LATEST_ABILITIES, LATEST_ITEM_PARAMETERS)
