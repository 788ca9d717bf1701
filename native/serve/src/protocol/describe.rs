//! Descriptions: the model's inputs and outputs, its versions and their statistics, as protocol messages.

use super::columns::item_inputs;
use super::input_names::{Naming, Side};
use super::messages::{
    ConfigInput, ConfigOutput, ConfigText, Duration, Index, InferStatistics, ModelConfig, ModelIndex,
    ModelMetadata, ModelStatistics, ServerMetadata, SpecificVersions, TensorMetadata, VersionPolicy,
    VersionStatistics, data_type,
};
use super::outputs::item_answer;
use super::outputs::{LOGIT, Output};
use super::scorer::{Scoring, Span, State, Statistics, models, served};
use super::wishes::version_of;
use crate::answer::Refusal;
use crate::inputs::{Count, Input, Inputs, Kind};

/// The platform name in the protocol.
const PLATFORM: &str = "streamlearn";

/// An input or output.
struct TensorInfo {
    name: String,
    datatype: &'static str,
    shape: Vec<i64>,
    is_optional: bool,
}

fn describe(side: Side, input: &Input, tensors: &mut Vec<TensorInfo>) {
    let any = |width: usize| i64::try_from(width).unwrap_or(i64::MAX);
    let mut add = |suffix: &str, datatype, shape, is_optional| {
        tensors.push(TensorInfo { name: format!("{}{suffix}", input.name), datatype, shape, is_optional });
    };
    match &input.kind {
        Kind::Dense { width, default } => {
            let shape = match (side, width) {
                (Side::User, _) => vec![any(*width)],
                (Side::Item, 1) => vec![-1],
                (Side::Item, _) => vec![-1, any(*width)],
            };
            add("", "FP32", shape, default.is_some());
        }
        Kind::Slot { is_text, values, default, .. } => {
            let datatype = if *is_text { "BYTES" } else { "INT64" };
            let is_one = *values == Count::One;
            let shape = if is_one && side == Side::User { vec![1] } else { vec![-1] };
            add("", datatype, shape, !is_one || default.is_some());
            if !is_one && side == Side::Item {
                add(".lengths", "INT32", vec![-1], true);
            }
            if *values == Count::Weighted {
                add(".weights", "FP32", vec![-1], true);
            }
        }
    }
}

fn inputs(naming: &Naming) -> Vec<TensorInfo> {
    let mut described = Vec::new();
    for column in 0..naming.columns() {
        let ((side, input), begin) = (naming.input(column), described.len());
        describe(side, input, &mut described);
        let is_in_library = naming.is_in_library(column);
        described[begin..].iter_mut().for_each(|tensor| tensor.is_optional |= is_in_library);
    }
    if let Some(items) = naming.inputs().items {
        let names = item_inputs::names(items).iter().enumerate();
        described.extend(names.zip(item_inputs::tensors(items)).map(|((at, name), (datatype, dim))| {
            TensorInfo { name: (*name).to_owned(), datatype, shape: vec![dim], is_optional: at > 0 }
        }));
    }
    described
}

/// The names and datatypes of the outputs.
fn outputs(naming: &Naming) -> Vec<(String, &'static str)> {
    let Inputs { labels, items, .. } = &**naming.inputs();
    let datatype = |output| items.map_or("FP32", |items| item_answer::datatype(output, items.is_text));
    Output::all(labels).map(|output| (output.name(labels), datatype(output))).collect()
}

/// Describes the server.
pub fn server() -> ServerMetadata {
    ServerMetadata {
        name: PLATFORM.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: [
            "model_configuration",
            "model_repository(index)",
            "statistics",
            "parameters",
            "binary_tensor_data",
        ]
        .map(str::to_owned)
        .into(),
    }
}

/// Describes the model's inputs and outputs.
pub fn metadata(naming: &Naming, state: &State) -> ModelMetadata {
    let tensor = |name, datatype: &str, shape| TensorMetadata { name, datatype: datatype.to_owned(), shape };
    ModelMetadata {
        name: naming.model().to_owned(),
        versions: state.kept.iter().map(u64::to_string).collect(),
        platform: PLATFORM.to_owned(),
        inputs: inputs(naming)
            .into_iter()
            .map(|input| tensor(input.name, input.datatype, input.shape))
            .collect(),
        outputs: outputs(naming)
            .into_iter()
            .map(|(name, datatype)| tensor(name, datatype, vec![-1]))
            .collect(),
    }
}

/// Returns the model's configuration.
pub fn config(naming: &Naming, state: &State) -> ModelConfig {
    let names = |inputs: &[Input]| {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        ConfigText { string_value: names.join(",") }
    };
    let model_inputs = naming.inputs();
    let versions = state.kept.iter().filter_map(|&version| version.try_into().ok()).collect();
    let input = |input: TensorInfo| ConfigInput {
        name: input.name,
        data_type: data_type(input.datatype),
        dims: input.shape,
        optional: input.is_optional,
    };
    let output = |(name, datatype)| ConfigOutput { name, data_type: data_type(datatype), dims: vec![-1] };
    let limit = |value: usize| ConfigText { string_value: value.to_string() };
    let parameters = [
        ("inputs_of_user", names(&model_inputs.user)),
        ("inputs_of_candidates", names(&model_inputs.item)),
        ("logits", ConfigText { string_value: format!("outputs that end with {LOGIT}") }),
        ("candidates_max", limit(model_inputs.limits.candidates_max)),
        ("values_max", limit(model_inputs.limits.values_max)),
        ("message_bytes_max", limit(model_inputs.limits.message_bytes_max)),
    ];
    ModelConfig {
        name: naming.model().to_owned(),
        platform: PLATFORM.to_owned(),
        version_policy: Some(VersionPolicy { specific: Some(SpecificVersions { versions }) }),
        max_batch_size: 0,
        input: inputs(naming).into_iter().map(input).collect(),
        output: outputs(naming).into_iter().map(output).collect(),
        parameters: parameters.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
        backend: PLATFORM.to_owned(),
    }
}

/// Returns the versions of all models; if the node is not ready, with state UNAVAILABLE.
pub fn index<S: Scoring>(scoring: &S, is_ready_only: bool) -> Index {
    let models = models(scoring);
    Index {
        models: models.iter().flat_map(|(naming, state)| index_of(naming, state, is_ready_only)).collect(),
    }
}

fn index_of(naming: &Naming, state: &State, is_ready_only: bool) -> Vec<ModelIndex> {
    let entry = |&version: &u64| {
        let reason = match (&state.stale, state.active == Some(version)) {
            (Some(stale), true) => format!("stale: {stale}"),
            (None, true) => "active".to_owned(),
            (_, false) => String::new(),
        };
        ModelIndex {
            name: naming.model().to_owned(),
            version: version.to_string(),
            state: if state.is_ready { "READY" } else { "UNAVAILABLE" }.to_owned(),
            reason,
        }
    };
    let is_wanted = state.is_ready || !is_ready_only;
    state.kept.iter().filter(|_| is_wanted).map(entry).collect()
}

/// Returns the statistics of all versions, or of the named one; of all models, if `model` is empty.
///
/// # Errors
/// If the model is unknown, or the named version is not kept and has no statistics.
pub fn statistics<S: Scoring>(scoring: &S, model: &str, version: &str) -> Result<ModelStatistics, Refusal> {
    let wanted = version_of(version)?;
    let models = if model.is_empty() { models(scoring) } else { vec![served(scoring, model)?] };
    let of_models = models.iter().map(|(naming, state)| statistics_of(naming, state, wanted));
    let model_stats = of_models.collect::<Vec<_>>().concat();
    if model_stats.is_empty() && !models.iter().any(|(_, state)| wanted.is_none() || state.has(wanted)) {
        return Err(unkept(version, &models[0].1));
    }
    Ok(ModelStatistics { model_stats })
}

fn statistics_of(naming: &Naming, state: &State, wanted: Option<u64>) -> Vec<VersionStatistics> {
    let span = |span: Span| Some(Duration { count: span.count, ns: span.ns });
    let figures = |statistics: &Statistics| VersionStatistics {
        name: naming.model().to_owned(),
        version: statistics.version.to_string(),
        last_inference: statistics.last_ms,
        inference_count: statistics.candidates,
        execution_count: statistics.batches,
        inference_stats: Some(InferStatistics {
            success: span(statistics.answered),
            fail: span(statistics.refused),
            queue: span(statistics.waiting),
            compute_input: span(statistics.gathering),
            compute_infer: span(statistics.executing),
            compute_output: span(statistics.replying),
        }),
    };
    let is_wanted = |statistics: &&Statistics| wanted.is_none_or(|version| statistics.version == version);
    state.statistics.iter().filter(is_wanted).map(figures).collect()
}

/// Checks that the named version is kept.
///
/// # Errors
/// If it is not.
pub fn check_version(state: &State, version: &str) -> Result<(), Refusal> {
    match version_of(version)? {
        Some(wanted) if !state.has(Some(wanted)) => Err(unkept(version, state)),
        _ => Ok(()),
    }
}

fn unkept(version: &str, state: &State) -> Refusal {
    let kept: Vec<String> = state.kept.iter().map(u64::to_string).collect();
    let kept = if kept.is_empty() { "none".to_owned() } else { kept.join(", ") };
    Refusal::NotKept(format!("this node does not keep version {version}; help: it has {kept}"))
}
