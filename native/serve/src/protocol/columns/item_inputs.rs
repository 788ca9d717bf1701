//! Item inputs: what a request for items has beside its user: how many items, and which not. Ids become keys as they
//! are read.

use serde::de::{Error, MapAccess};

use super::super::input_names::Naming;
use super::super::outputs::item_answer::predicted;
use super::super::values::elements;
use super::super::values::keys::Keys;
use super::super::values::scalars::{Ints, Texts, Value, ValueForm};
use super::super::values::tensor::{Tensor, cut};
use crate::answer::Refusal;
use crate::inputs::{Inputs, ItemInputs, Limits};
use crate::request::{ItemWishes, RankWishes};

/// The names of the inputs of a request whose items are ranked; others have the first three.
const NAMES: [&str; NAMES_MAX] = ["k", "exclude", "allow", CANDIDATES, RANK_BY];
/// The most inputs that a request has beside its user.
pub const NAMES_MAX: usize = 5;
const CANDIDATES: &str = "candidates";
const RANK_BY: &str = "rank_by";
/// How many items are retrieved to be ranked, if the request does not say.
const CANDIDATES_DEFAULT: usize = 500;

/// The names of requests for items.
pub fn names(items: ItemInputs) -> &'static [&'static str] {
    if items.rank_by.is_some() { &NAMES } else { &NAMES[..3] }
}

/// Their datatypes and dimensions as tensors, in the order of their names.
pub fn tensors(items: ItemInputs) -> [(&'static str, i64); NAMES_MAX] {
    let ids = (if items.is_text { "BYTES" } else { "INT64" }, -1);
    [("INT64", 1), ids, ids, ("INT64", 1), ("BYTES", 1)]
}

/// The maximum number of ids in a list: their keys take no more memory than a message.
fn ids_max(limits: &Limits) -> usize {
    limits.message_bytes_max / size_of::<u64>()
}

/// The inputs as far as they are read.
#[derive(Debug, Default)]
pub struct ItemInputReader {
    k: Option<i64>,
    ids: [Option<Vec<u64>>; 2],
    candidates: Option<i64>,
    rank_by: Option<String>,
}

impl ItemInputReader {
    /// Reads the field of a JSON object with one of the names.
    pub fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        naming: &Naming,
        items: ItemInputs,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let with_name = |text: &dyn std::fmt::Display| A::Error::custom(format!("{name:?}: {text}"));
        if name == RANK_BY {
            let by = &mut self.rank_by;
            let mut take = Texts(|text: &str| {
                by.replace(text.to_owned()).map_or(Ok(()), |_| Err("it is given twice".to_owned()))
            });
            let seed = Value { take: &mut take, list: None };
            return map.next_value_seed(seed).map(|_| ()).map_err(|error| with_name(&error));
        }
        if name == NAMES[0] || name == CANDIDATES {
            let count = if name == CANDIDATES { &mut self.candidates } else { &mut self.k };
            let mut take =
                Ints(|value| count.replace(value).map_or(Ok(()), |_| Err("it is given twice".to_owned())));
            let seed = Value { take: &mut take, list: None };
            return map.next_value_seed(seed).map(|_| ()).map_err(|error| with_name(&error));
        }
        let ids = &mut self.ids[usize::from(name == NAMES[2])];
        if ids.is_some() {
            return Err(with_name(&"it is given twice"));
        }
        let (mut keys, list) = (Vec::new(), Some(ids_max(&naming.inputs().limits) as u64));
        let (hashing, salt) = (naming.keys(), items.salt);
        let form = if items.is_text {
            let mut take = Texts(|text: &str| {
                keys.push(hashing.of_text(text, salt));
                Ok(())
            });
            map.next_value_seed(Value { take: &mut take, list })
        } else {
            let mut take = Ints(|value| {
                keys.push(hashing.of_int(value, salt));
                Ok(())
            });
            map.next_value_seed(Value { take: &mut take, list })
        };
        match form.map_err(|error| with_name(&error))? {
            ValueForm::Nothing => {}
            ValueForm::List(_) => *ids = Some(keys),
            ValueForm::One => return Err(with_name(&"one value, expected a list of ids")),
        }
        Ok(())
    }

    /// Reads the tensors of the names.
    pub fn tensors(
        &mut self,
        [k, exclude, allow, candidates, rank_by]: [Option<&Tensor<'_>>; NAMES_MAX],
        items: ItemInputs,
        naming: &Naming,
    ) -> Result<(), Refusal> {
        let bad = |name: &str, text: String| Refusal::Bad(format!("input {name:?}: {text}"));
        let check_one = |name: &str, tensor: &Tensor<'_>, (is_right, expected): (bool, &str)| {
            let is_one = matches!(tensor.shape.dims(), Some([] | [1]));
            let (datatype, shape) = (tensor.datatype.name(), tensor.shape);
            let text = || format!("{datatype} of shape {shape}, expected {expected} of shape [1]");
            (is_right && is_one).then_some(()).ok_or_else(|| bad(name, text()))
        };
        for (name, tensor, count) in [("k", k, &mut self.k), (CANDIDATES, candidates, &mut self.candidates)] {
            let Some(tensor) = tensor else { continue };
            check_one(name, tensor, (tensor.datatype.is_whole(), "INT64"))?;
            elements::each_int(tensor, 1, |value| *count = Some(value)).map_err(|text| bad(name, text))?;
        }
        if let Some(tensor) = rank_by {
            check_one(RANK_BY, tensor, (tensor.datatype.name() == "BYTES", "BYTES"))?;
            let by = &mut self.rank_by;
            elements::each_text(tensor, 1, |text| *by = Some(text.to_owned()))
                .map_err(|text| bad(RANK_BY, text))?;
        }
        let ids_max = ids_max(&naming.inputs().limits);
        for (at, tensor) in [exclude, allow].into_iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let keys = keys_of(tensor, items, ids_max, naming.keys());
            self.ids[at] = Some(keys.map_err(|text| bad(NAMES[at + 1], text))?);
        }
        Ok(())
    }

    /// Checks what was read and returns it.
    pub fn into_wishes(self, items: ItemInputs, inputs: &Inputs) -> Result<Box<ItemWishes>, Refusal> {
        let k_max = if items.rank_by.is_some() { candidates_max(items, inputs) } else { items.k_max };
        let Some(k) = self.k else {
            return Err(Refusal::Bad(format!(
                "\"k\" is missing; help: it is the number of items, from 1 to {k_max}"
            )));
        };
        let [exclude, allow] = self.ids;
        let Some(k) = usize::try_from(k).ok().filter(|k| (1..=k_max).contains(k)) else {
            let help = match items.rank_by {
                Some(_) => "retrieval.k_max and front.candidates_max bound the items of an answer",
                None => "retrieval.k_max is the most items of an answer",
            };
            return Err(Refusal::Bad(format!("\"k\" is {k}, expected 1 to {k_max}; help: {help}")));
        };
        let rank =
            items.rank_by.map(|by| rank_wishes((self.candidates, self.rank_by), by, (k, k_max), inputs));
        let rank = rank.transpose()?;
        Ok(Box::new(ItemWishes { k, exclude: exclude.unwrap_or_default(), allow, rank }))
    }
}

/// The most items that are retrieved for one request to be ranked.
fn candidates_max(items: ItemInputs, inputs: &Inputs) -> usize {
    items.k_max.min(inputs.limits.candidates_max)
}

fn rank_wishes(
    (candidates, by): (Option<i64>, Option<String>),
    by_default: usize,
    (k, candidates_max): (usize, usize),
    inputs: &Inputs,
) -> Result<RankWishes, Refusal> {
    let candidates = match candidates {
        None => CANDIDATES_DEFAULT.clamp(k, candidates_max),
        Some(candidates) => {
            let text = || {
                format!(
                    "\"candidates\" is {candidates}, expected \"k\" to {candidates_max}; help: it is how many items \
                     are retrieved, of which the best {k} are answered; retrieval.k_max and front.candidates_max bound it"
                )
            };
            let count = usize::try_from(candidates).ok().filter(|count| (k..=candidates_max).contains(count));
            count.ok_or_else(|| Refusal::Bad(text()))?
        }
    };
    let by = match by {
        None => by_default,
        Some(name) => {
            predicted(&inputs.labels).iter().position(|label| label.name == name).ok_or_else(|| {
                let names: Vec<&str> =
                    predicted(&inputs.labels).iter().map(|label| label.name.as_str()).collect();
                Refusal::Bad(format!(
                    "\"rank_by\" is {:?}; help: labels are {}",
                    cut(&name),
                    names.join(", ")
                ))
            })?
        }
    };
    Ok(RankWishes { candidates, by })
}

fn keys_of(
    tensor: &Tensor<'_>,
    items: ItemInputs,
    ids_max: usize,
    hashing: &Keys,
) -> Result<Vec<u64>, String> {
    let expected = if items.is_text { "BYTES" } else { "INT64" };
    let is_right =
        if items.is_text { expected == tensor.datatype.name() } else { tensor.datatype.is_whole() };
    if !is_right || !matches!(tensor.shape.dims(), Some([_] | [1, _])) {
        let (datatype, shape) = (tensor.datatype.name(), tensor.shape);
        return Err(format!(
            "{datatype} of shape {shape}, expected {expected} of shape [n], one for each id"
        ));
    }
    let count = tensor.count(ids_max)?;
    if items.is_text {
        tensor.text_keys(count, items.salt, hashing)
    } else {
        tensor.int_keys(count, items.salt, hashing)
    }
}
