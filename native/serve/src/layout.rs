//! Layout: where each column of a request stands in the tensors a model takes. It moves no number.

use serde_json::Value;

use crate::inputs::{Count, Input, Inputs, Kind, Limits};

/// Where the columns of both sides stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The tensors of the user.
    pub user: Side,
    /// The tensors of a candidate.
    pub item: Side,
}

/// The tensors of one side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// Columns of the flat matrix.
    pub flat: Vec<Place>,
    /// Its width; 0 where there is none.
    pub flat_width: usize,
    /// Columns of the sequence block.
    pub sequence: Vec<Place>,
    /// How many places of a history a model takes at most; 0 where it takes none.
    pub length: usize,
    /// Channels of a place, the mask last.
    pub sequence_width: usize,
}

impl Side {
    /// How many inputs its columns are of.
    pub fn inputs(&self) -> usize {
        self.flat.iter().chain(&self.sequence).map(|place| place.column + 1).max().unwrap_or(0)
    }
}

/// Where one column stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The column, by its place among the side's inputs.
    pub column: usize,
    /// The table its rows are of, by its place among the tables; 0 for numbers.
    pub table: usize,
    /// How its rows become one.
    pub pooling: Pooling,
    /// Its first channel.
    pub at: usize,
    /// How many channels it takes.
    pub width: usize,
}

/// How the rows of one example become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Numbers, which are no rows.
    Dense,
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum over the square root of how many they are.
    Sqrtn,
    /// Their sum, each times its weight.
    Weighted,
    /// They stay apart.
    Sequence,
}

/// What a model takes, as text: read once, when a front end is made.
///
/// The text is JSON: `{"inputs": {"user": [...], "item": [...]}, "labels": [...], "tables": [...], "pack": {...},
/// "limits": {...}}`, where `pack` is what a `PackPlan` says of itself, `tables` are names in the order in which
/// they are handed over, and an input is `{"name", "salt", "is_text", "count", "newest", "default"}` of a slot or
/// `{"name", "width", "default_bits"}` of numbers.
pub fn described(text: &str) -> Result<(Inputs, Layout), String> {
    let whole: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let labels = list(&whole["labels"], "labels")?
        .iter()
        .map(|one| text_of(one, "label"))
        .collect::<Result<_, _>>()?;
    let inputs = Inputs {
        user: inputs_of(&whole["inputs"]["user"])?,
        item: inputs_of(&whole["inputs"]["item"])?,
        labels,
        limits: Limits {
            candidates_max: whole_of(&whole["limits"], "candidates_max")?,
            values_max: whole_of(&whole["limits"], "values_max")?,
            message_bytes_max: whole_of(&whole["limits"], "message_bytes_max")?,
        },
    };
    let tables: Vec<String> = list(&whole["tables"], "tables")?
        .iter()
        .map(|one| text_of(one, "table"))
        .collect::<Result<_, _>>()?;
    let layout = Layout {
        user: side_of(&whole["pack"]["user"], &inputs.user, &tables)?,
        item: side_of(&whole["pack"]["item"], &inputs.item, &tables)?,
    };
    Ok((inputs, layout))
}

fn inputs_of(side: &Value) -> Result<Vec<Input>, String> {
    list(side, "inputs")?
        .iter()
        .map(|one| {
            let name = text_of(&one["name"], "name")?;
            let kind = if one.get("width").is_some() {
                let default = one["default_bits"].as_u64().map(|bits| bits as u32);
                Kind::Dense { width: whole_of(one, "width")?, default }
            } else {
                let values = match text_of(&one["count"], "count")?.as_str() {
                    "one" => Count::One,
                    "many" => Count::Many,
                    "weighted" => Count::Weighted,
                    "newest" => Count::Newest(whole_of(one, "newest")?),
                    other => return Err(format!("{name}: unknown count {other:?}")),
                };
                let salt = one["salt"].as_u64().ok_or_else(|| format!("{name}: salt is not a number"))?;
                let is_text = one["is_text"].as_bool().unwrap_or(false);
                Kind::Slot { salt, is_text, values, default: one["default"].as_u64() }
            };
            Ok(Input { name, kind })
        })
        .collect()
}

fn side_of(pack: &Value, inputs: &[Input], tables: &[String]) -> Result<Side, String> {
    let places = |columns: &Value| -> Result<Vec<Place>, String> {
        list(columns, "columns")?.iter().map(|column| place_of(column, inputs, tables)).collect()
    };
    Ok(Side {
        flat: places(&pack["flat"])?,
        flat_width: whole_of(pack, "flat_width")?,
        sequence: places(&pack["sequence"])?,
        length: whole_of(pack, "sequence_length")?,
        sequence_width: whole_of(pack, "sequence_width")?,
    })
}

fn place_of(column: &Value, inputs: &[Input], tables: &[String]) -> Result<Place, String> {
    let name = text_of(&column["name"], "name")?;
    let pooling = match text_of(&column["pooling"], "pooling")?.as_str() {
        "dense" => Pooling::Dense,
        "sum" => Pooling::Sum,
        "mean" => Pooling::Mean,
        "sqrtn" => Pooling::Sqrtn,
        "weighted" => Pooling::Weighted,
        "sequence" => Pooling::Sequence,
        other => return Err(format!("{name}: unknown pooling {other:?}")),
    };
    let table = text_of(&column["table"], "table")?;
    let table = if pooling == Pooling::Dense {
        0
    } else {
        let found = tables.iter().position(|one| *one == table);
        found.ok_or_else(|| format!("{name}: unknown table {table:?}"))?
    };
    let column_at = inputs.iter().position(|one| one.name == name);
    Ok(Place {
        column: column_at.ok_or_else(|| format!("{name} is not an input"))?,
        table,
        pooling,
        at: whole_of(column, "at")?,
        width: whole_of(column, "width")?,
    })
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{what} are not a list"))
}

fn text_of(value: &Value, what: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{what} is not a text: {value}"))
}

fn whole_of(value: &Value, name: &str) -> Result<usize, String> {
    let found = value[name].as_u64().and_then(|number| usize::try_from(number).ok());
    found.ok_or_else(|| format!("{name} is not a whole number: {}", value[name]))
}
