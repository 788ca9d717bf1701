//! Layout: the position of each request column in the model's input tensors. Moves no data.

use serde_json::Value;
use streamlearn_wire::keys::slot_salt;

use crate::inputs::{Count, Input, Inputs, ItemInputs, Kind, Label, LibraryInputs, Limits};

/// The layout of both sides.
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
    /// The width of the flat matrix; 0 if there is none.
    pub flat_width: usize,
    /// Columns of the sequence block.
    pub sequence: Vec<Place>,
    /// The maximum length of a history; 0 if the model has no sequences.
    pub length: usize,
    /// Channels of a history position, the mask last.
    pub sequence_width: usize,
    /// The number of inputs.
    pub inputs: usize,
    /// How to make derived columns, which follow those of the inputs.
    pub derived: Vec<Derived>,
}

/// How to make a column from two others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Derived {
    /// A slot of their pairs, with the seed of its keys.
    Cross([Source; 2], u64),
    /// Their products, of this many numbers.
    Product([Source; 2], usize),
    /// How often the first one's key is in the list of the second.
    Count([Source; 2]),
    /// The first 48 bits of a slot's key, as two numbers.
    Key(Source),
}

/// The column of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Of the derived column's own side.
    Own(usize),
    /// Of the user, for a column of candidates.
    User(usize),
}

/// The position of one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The index of the column among the side's inputs.
    pub column: usize,
    /// The index of its table; 0 for numbers.
    pub table: usize,
    /// How an example's rows are pooled.
    pub pooling: Pooling,
    /// Its first channel.
    pub at: usize,
    /// The number of channels.
    pub width: usize,
}

/// How the rows of one example are pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Numbers without rows.
    Dense,
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The sum divided by the square root of the number of rows.
    Sqrtn,
    /// The weighted sum.
    Weighted,
    /// Not pooled.
    Sequence,
}

/// Parses a model's inputs and layout; called once, when a front is created.
///
/// The text is JSON: `{"inputs": {"user": [...], "item": [...]}, "labels": [{"name", "is_number"}], "segments": [...],
/// "class_segment": "", "items": {"salt", "is_text", "k_max"}, "tables": [...], "pack": {...}, "limits": {...}}`. `pack` is a serialized `PackPlan`; `tables`
/// are names in the order in which tables are passed; an input is `{"name", "salt", "is_text", "count", "newest", "default"}` for a slot or
/// `{"name", "width", "default_bits"}` for numbers, both with "was" if callers may use a former name and with
/// "is_computed" if the node computes it. "items" is for models that find items: theirs
/// have no columns, and are zeros as wide as "pack" says. "library" is for models whose candidates have a library: `{"id":
/// NAME, "columns": [NAME, ...], "k_max", "label": NAME}`.
pub fn described(text: &str) -> Result<(Inputs, Layout), String> {
    let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let labels = list(&document["labels"], "labels")?
        .iter()
        .map(|label| {
            let name = text_of(&label["name"], "label")?;
            Ok(Label { name, is_number: label["is_number"].as_bool().unwrap_or_default() })
        })
        .collect::<Result<_, String>>()?;
    let segments = document["segments"].as_array().into_iter().flatten();
    let inputs = Inputs {
        segments: segments.map(|name| text_of(name, "segment")).collect::<Result<_, _>>()?,
        class_segment: document["class_segment"].as_str().unwrap_or_default().to_owned(),
        user: inputs_of(&document["inputs"]["user"])?,
        item: inputs_of(&document["inputs"]["item"])?,
        labels,
        items: document.get("items").map(item_inputs_of).transpose()?,
        library: document.get("library").map(|library| library_of(library, &document)).transpose()?,
        limits: Limits {
            candidates_max: whole_of(&document["limits"], "candidates_max")?,
            values_max: whole_of(&document["limits"], "values_max")?,
            message_bytes_max: whole_of(&document["limits"], "message_bytes_max")?,
        },
    };
    let tables: Vec<String> = list(&document["tables"], "tables")?
        .iter()
        .map(|value| text_of(value, "table"))
        .collect::<Result<_, _>>()?;
    let layout = Layout {
        user: side_of(&document["pack"]["user"], &inputs.user, &[], &tables)?,
        item: side_of(&document["pack"]["item"], &inputs.item, &inputs.user, &tables)?,
    };
    Ok((inputs, layout))
}

fn item_inputs_of(items: &Value) -> Result<ItemInputs, String> {
    let salt = items["salt"].as_u64().ok_or("the salt of items is not a number")?;
    let is_text = items["is_text"].as_bool().unwrap_or_default();
    Ok(ItemInputs { salt, is_text, k_max: whole_of(items, "k_max")?, rank_by: None })
}

fn library_of(library: &Value, document: &Value) -> Result<LibraryInputs, String> {
    let place = |inputs: &Value, name: &Value| {
        let found =
            inputs.as_array().and_then(|inputs| inputs.iter().position(|input| input["name"] == *name));
        found.ok_or_else(|| format!("the library has {name}, but the inputs do not"))
    };
    let inputs = &document["inputs"]["item"];
    let columns = list(&library["columns"], "columns")?.iter().map(|name| place(inputs, name));
    Ok(LibraryInputs {
        id: place(inputs, &library["id"])?,
        columns: columns.collect::<Result<_, _>>()?,
        k_max: whole_of(library, "k_max")?,
        label: place(&document["labels"], &library["label"])?,
    })
}

fn inputs_of(side: &Value) -> Result<Vec<Input>, String> {
    list(side, "inputs")?
        .iter()
        .map(|input| {
            let name = text_of(&input["name"], "name")?;
            let kind = if input.get("width").is_some() {
                let default = input["default_bits"].as_u64().map(|bits| bits as u32);
                Kind::Dense { width: whole_of(input, "width")?, default }
            } else {
                let values = match text_of(&input["count"], "count")?.as_str() {
                    "one" => Count::One,
                    "many" => Count::Many,
                    "weighted" => Count::Weighted,
                    "newest" => Count::Newest(whole_of(input, "newest")?),
                    other => return Err(format!("{name}: unknown count {other:?}")),
                };
                let salt = input["salt"].as_u64().ok_or_else(|| format!("{name}: salt is not a number"))?;
                let is_text = input["is_text"].as_bool().unwrap_or(false);
                Kind::Slot { salt, is_text, values, default: input["default"].as_u64() }
            };
            let was = input["was"].as_str().map(str::to_owned);
            let is_computed = input["is_computed"].as_bool().unwrap_or_default();
            Ok(Input { name, kind, was, is_computed })
        })
        .collect()
}

/// The layout of a side with some inputs; derived columns of candidates may have inputs of the user.
fn side_of(pack: &Value, inputs: &[Input], user: &[Input], tables: &[String]) -> Result<Side, String> {
    let mut derived = Vec::new();
    let mut names: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
    for column in list(&pack["flat"], "columns")?.iter().filter(|column| column.get("of").is_some()) {
        derived.push(derived_of(column, inputs, user)?);
        names.push(text_of(&column["name"], "name")?);
    }
    let columns = |list_value: &Value| -> Result<Vec<Place>, String> {
        list(list_value, "columns")?.iter().map(|column| place_of(column, &names, tables)).collect()
    };
    Ok(Side {
        inputs: inputs.len(),
        derived,
        flat: columns(&pack["flat"])?,
        flat_width: whole_of(pack, "flat_width")?,
        sequence: columns(&pack["sequence"])?,
        length: whole_of(pack, "sequence_length")?,
        sequence_width: whole_of(pack, "sequence_width")?,
    })
}

fn derived_of(column: &Value, inputs: &[Input], user: &[Input]) -> Result<Derived, String> {
    let name = text_of(&column["name"], "name")?;
    let source = |at: usize| -> Result<(Source, &Kind), String> {
        let of = text_of(&column["of"][at], "source")?;
        let found = |inputs: &[Input]| inputs.iter().position(|input| input.name == of);
        let own = found(inputs).map(|at| (Source::Own(at), &inputs[at].kind));
        own.or_else(|| found(user).map(|at| (Source::User(at), &user[at].kind)))
            .ok_or_else(|| format!("{name} is made from {of}, which must be an input"))
    };
    let ((first, first_kind), (second, second_kind)) = (source(0)?, source(1)?);
    let (of, one) = ([first, second], |kind: &Kind| matches!(kind, Kind::Slot { values: Count::One, .. }));
    match (first_kind, second_kind) {
        (Kind::Dense { width, .. }, Kind::Dense { width: other, .. }) if width == other => {
            Ok(Derived::Product(of, *width))
        }
        (Kind::Slot { .. }, _) if one(first_kind) && column["pooling"] == "key" => Ok(Derived::Key(first)),
        (Kind::Slot { .. }, Kind::Slot { .. }) if one(first_kind) && one(second_kind) => {
            Ok(Derived::Cross(of, slot_salt(&name)))
        }
        (Kind::Slot { .. }, Kind::Slot { .. })
            if one(first_kind) && matches!(of, [Source::Own(_), Source::User(_)]) =>
        {
            Ok(Derived::Count(of))
        }
        _ => Err(format!("{name} cannot be made from {} and {}", column["of"][0], column["of"][1])),
    }
}

fn place_of(column: &Value, names: &[String], tables: &[String]) -> Result<Place, String> {
    let name = text_of(&column["name"], "name")?;
    let pooling = match text_of(&column["pooling"], "pooling")?.as_str() {
        "dense" | "key" => Pooling::Dense,
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
        let index = tables.iter().position(|candidate| *candidate == table);
        index.ok_or_else(|| format!("{name}: unknown table {table:?}"))?
    };
    let column_at = names.iter().position(|candidate| *candidate == name);
    Ok(Place {
        column: column_at.ok_or_else(|| format!("{name} is not an input"))?,
        table,
        pooling,
        at: whole_of(column, "at")?,
        width: whole_of(column, "width")?,
    })
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>, String> {
    value.as_array().ok_or_else(|| format!("{name} are not a list"))
}

fn text_of(value: &Value, name: &str) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{name} is not a text: {value}"))
}

fn whole_of(value: &Value, name: &str) -> Result<usize, String> {
    let number = value[name].as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| format!("{name} is not a whole number: {}", value[name]))
}
