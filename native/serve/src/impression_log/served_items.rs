//! The parts of an impression that its request did not send: retrieved candidates, and columns from the library.

use std::sync::Arc;

use streamlearn_wire::keys::int_of_key;

use crate::answer::Answer;
use crate::columns::Column;
use crate::inputs::{Input, Inputs, Kind};
use crate::protocol::Texts;
use crate::request::{Request, Values};
use crate::versions::item_features::ColumnForm;
use crate::versions::raw_ids::RawId;

/// Puts retrieved candidates into a request that was decoded with plain values: their ids, and which were shown.
///
/// `order` has the candidates that were answered, best first. The request names the places in it that were shown.
///
/// # Errors
/// If the version has no id of an item.
pub fn put(
    request: &mut Request,
    order: &[u32],
    answer: &Answer,
    inputs: &Arc<Inputs>,
    texts: &mut Texts,
) -> Result<(), String> {
    let (Some(found), Some(library)) = (&answer.found, &inputs.library) else {
        return Err("the answer has no items".to_owned());
    };
    let id = |&key: &u64| match found.index.ids.get(key) {
        Some(RawId::Int(int)) => Ok(int as u64),
        Some(RawId::Text(text)) => Ok(texts.keep(text)),
        None => Err(format!("the version has a vector for key {key}, but no id")),
    };
    let mut ids = Some(Values::Keys(found.keys.iter().map(id).collect::<Result<_, _>>()?));
    request.candidates = found.keys.len();
    request.inputs = inputs.clone();
    let columns = inputs.item.iter().enumerate().map(|(at, input)| match ids.take_if(|_| at == library.id) {
        Some(ids) => Ok(ids),
        None => input.blank(found.keys.len(), inputs.limits.values_max),
    });
    request.item = columns.collect::<Result<_, String>>()?;
    let shown = request.shown.take();
    request.shown = Some(match shown {
        None => order.to_vec(),
        // The answer may have fewer items than the request asked for.
        Some(places) => places.iter().filter_map(|&place| order.get(place as usize)).copied().collect(),
    });
    Ok(())
}

/// Puts what was taken from the library into a request that was decoded with plain values. Integers are those of their
/// keys. Texts are not known, and are empty.
pub fn put_filled(request: &mut Request, filled: &Request) {
    let Some(left_out) = &filled.left_out else { return };
    let (inputs, candidates) = (request.inputs.clone(), request.candidates);
    for (at, _) in &left_out.columns {
        let (input, taken) = (&inputs.item[*at], plain(&inputs.item[*at], &filled.item[*at]));
        let mut column = Column::default();
        for row in 0..candidates {
            let values = if left_out.is_filled(*at, row) { &taken } else { &request.item[*at] };
            column.add(values, candidates, row..row + 1);
        }
        request.item[*at] = ColumnForm::of(input).values(&mut column);
    }
}

fn plain(input: &Input, values: &Values) -> Values {
    let Kind::Slot { salt, is_text, .. } = input.kind else { return values.clone() };
    let plain = |keys: &[u64]| {
        let value = |&key: &u64| if is_text { 0 } else { int_of_key(key, salt) as u64 };
        keys.iter().map(value).collect()
    };
    match values {
        Values::Keys(keys) => Values::Keys(plain(keys)),
        Values::Lists { keys, offsets, weights } => {
            Values::Lists { keys: plain(keys), offsets: offsets.clone(), weights: weights.clone() }
        }
        Values::Numbers(_) => unreachable!("a slot has keys"),
    }
}
