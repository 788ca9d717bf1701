//! Schema: an Avro schema parsed from JSON into a flat list of types. Knows nothing of columns or resolution.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::errors::PlanError;

/// Maximum nesting of types, in a schema and in a plan.
pub(super) const DEPTH_MAX: usize = 32;
/// Maximum number of types in a schema and of nodes in a plan.
pub(super) const NODES_MAX: usize = 10_000;

pub(super) type TypeId = usize;

#[derive(Debug)]
pub(super) enum Type {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Fixed { name: String, length: usize },
    Enum { name: String, aliases: Vec<String>, symbols: Vec<String>, default: Option<String> },
    Record { name: String, aliases: Vec<String>, fields: Vec<Field> },
    Array(TypeId),
    Map(TypeId),
    Union(Vec<TypeId>),
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) aliases: Vec<String>,
    pub(super) kind: TypeId,
    pub(super) default: Option<Value>,
}

/// The encoded size of a value: at least `min` bytes, and exactly `exact` if the size never varies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) min: usize,
    pub(super) exact: Option<usize>,
}

#[derive(Debug)]
pub(super) struct Schema {
    types: Vec<Type>,
    sizes: Vec<Size>,
    pub(super) root: TypeId,
}

impl Schema {
    /// Parses a schema; `side` is "writer" or "reader" and starts every error.
    pub(super) fn parse(json: &Value, side: &str) -> Result<Self, PlanError> {
        let mut parser = Parser { types: Vec::new(), names: HashMap::new() };
        let place = SchemaPlace { namespace: "", path: "", depth: 0 };
        let root = parser
            .read(json, &place)
            .map_err(|PlanError(text)| PlanError(format!("{side} schema: {text}")))?;
        let sizes = sizes(&parser.types);
        Ok(Self { types: parser.types, sizes, root })
    }

    pub(super) fn get(&self, id: TypeId) -> &Type {
        &self.types[id]
    }

    pub(super) fn size(&self, id: TypeId) -> Size {
        self.sizes[id]
    }

    /// The name of a type in errors.
    pub(super) fn describe(&self, id: TypeId) -> String {
        match self.get(id) {
            Type::Null => "null".to_owned(),
            Type::Boolean => "boolean".to_owned(),
            Type::Int => "int".to_owned(),
            Type::Long => "long".to_owned(),
            Type::Float => "float".to_owned(),
            Type::Double => "double".to_owned(),
            Type::Bytes => "bytes".to_owned(),
            Type::String => "string".to_owned(),
            Type::Fixed { name, .. } => format!("fixed '{name}'"),
            Type::Enum { name, .. } => format!("enum '{name}'"),
            Type::Record { name, .. } => format!("record '{name}'"),
            Type::Array(_) => "array".to_owned(),
            Type::Map(_) => "map".to_owned(),
            Type::Union(branches) => {
                let branches: Vec<_> = branches.iter().map(|&branch| self.describe(branch)).collect();
                format!("union of {}", branches.join(", "))
            }
        }
    }
}

/// A name without its namespace. Resolution compares only these.
pub(super) fn unqualified(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// `path.name`, or `name` at the top.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `path: text`, or `text` at the top.
pub(super) fn refuse<T>(path: &str, text: &str) -> Result<T, PlanError> {
    Err(PlanError(if path.is_empty() { text.to_owned() } else { format!("'{path}': {text}") }))
}

struct SchemaPlace<'a> {
    namespace: &'a str,
    path: &'a str,
    depth: usize,
}

impl<'a> SchemaPlace<'a> {
    fn below(&self) -> Self {
        Self { namespace: self.namespace, path: self.path, depth: self.depth + 1 }
    }

    fn refuse<T>(&self, text: &str) -> Result<T, PlanError> {
        refuse(self.path, text)
    }
}

struct Parser {
    types: Vec<Type>,
    names: HashMap<String, TypeId>,
}

impl Parser {
    fn read(&mut self, json: &Value, place: &SchemaPlace<'_>) -> Result<TypeId, PlanError> {
        if place.depth > DEPTH_MAX {
            return place.refuse(&format!("types nest deeper than {DEPTH_MAX}"));
        }
        match json {
            Value::String(name) => self.named(name, place),
            Value::Array(branches) => self.union(branches, place),
            Value::Object(object) => self.object(object, place),
            other => place.refuse(&format!("a type must be a name, a list or an object, not {other}")),
        }
    }

    fn add(&mut self, kind: Type, place: &SchemaPlace<'_>) -> Result<TypeId, PlanError> {
        if self.types.len() >= NODES_MAX {
            return place.refuse(&format!("more than {NODES_MAX} types"));
        }
        self.types.push(kind);
        Ok(self.types.len() - 1)
    }

    fn named(&mut self, name: &str, place: &SchemaPlace<'_>) -> Result<TypeId, PlanError> {
        let kind = match name {
            "null" => Type::Null,
            "boolean" => Type::Boolean,
            "int" => Type::Int,
            "long" => Type::Long,
            "float" => Type::Float,
            "double" => Type::Double,
            "bytes" => Type::Bytes,
            "string" => Type::String,
            _ => {
                let full = qualify(name, place.namespace);
                return match self.names.get(&full) {
                    Some(&id) => Ok(id),
                    None => place.refuse(&format!("type '{full}' is not defined")),
                };
            }
        };
        self.add(kind, place)
    }

    fn union(&mut self, branches: &[Value], place: &SchemaPlace<'_>) -> Result<TypeId, PlanError> {
        let mut ids = Vec::with_capacity(branches.len());
        let mut seen = HashSet::new();
        for branch in branches {
            let id = self.read(branch, &place.below())?;
            let tag = match &self.types[id] {
                Type::Union(_) => return place.refuse("a union directly inside a union"),
                Type::Fixed { name, .. } | Type::Enum { name, .. } | Type::Record { name, .. } => {
                    name.clone()
                }
                other => format!("{:?}", std::mem::discriminant(other)),
            };
            if !seen.insert(tag) {
                return place.refuse("a union with the same type twice");
            }
            ids.push(id);
        }
        self.add(Type::Union(ids), place)
    }

    fn object(&mut self, object: &Map<String, Value>, place: &SchemaPlace<'_>) -> Result<TypeId, PlanError> {
        let Some(kind) = object.get("type") else {
            return place.refuse("a type without \"type\"");
        };
        let Value::String(kind) = kind else {
            return self.read(kind, &place.below());
        };
        match kind.as_str() {
            "array" => {
                let item = self.read(object.get("items").unwrap_or(&Value::Null), &place.below())?;
                self.add(Type::Array(item), place)
            }
            "map" => {
                let value = self.read(object.get("values").unwrap_or(&Value::Null), &place.below())?;
                self.add(Type::Map(value), place)
            }
            "record" | "error" | "enum" | "fixed" => self.definition(kind, object, place),
            name => self.named(name, place),
        }
    }

    fn definition(
        &mut self,
        kind: &str,
        object: &Map<String, Value>,
        place: &SchemaPlace<'_>,
    ) -> Result<TypeId, PlanError> {
        let Some(Value::String(short)) = object.get("name") else {
            return place.refuse(&format!("{kind} without a name"));
        };
        let namespace = object.get("namespace").and_then(Value::as_str).unwrap_or(place.namespace);
        let name = qualify(short, namespace);
        if !name.split('.').all(is_name) {
            return place.refuse(&format!("'{name}' is not a name"));
        }
        let namespace = name.rsplit_once('.').map_or("", |(namespace, _)| namespace);
        let aliases = strings(object.get("aliases"), place)?;
        // The name is registered before the fields are parsed, since they may refer to it.
        let open = Type::Record { name: name.clone(), aliases: Vec::new(), fields: Vec::new() };
        let id = self.add(open, place)?;
        if self.names.insert(name.clone(), id).is_some() {
            return place.refuse(&format!("'{name}' is defined twice"));
        }
        self.types[id] = match kind {
            "enum" => enumeration(name, aliases, object, place)?,
            "fixed" => match object.get("size").and_then(Value::as_u64).map(usize::try_from) {
                Some(Ok(length)) => Type::Fixed { name, length },
                _ => return place.refuse(&format!("fixed '{name}' without a size")),
            },
            _ => {
                let inside = SchemaPlace { namespace, path: place.path, depth: place.depth };
                let fields = self.fields(&name, object, &inside)?;
                Type::Record { name, aliases, fields }
            }
        };
        Ok(id)
    }

    fn fields(
        &mut self,
        record: &str,
        object: &Map<String, Value>,
        place: &SchemaPlace<'_>,
    ) -> Result<Vec<Field>, PlanError> {
        let Some(Value::Array(list)) = object.get("fields") else {
            return place.refuse(&format!("record '{record}' without fields"));
        };
        let mut fields: Vec<Field> = Vec::with_capacity(list.len());
        let mut seen = HashSet::new();
        for field in list {
            let (Some(name), Some(kind)) = (field.get("name").and_then(Value::as_str), field.get("type"))
            else {
                return place.refuse(&format!("a field of record '{record}' without name or type"));
            };
            if !is_name(name) || !seen.insert(name) {
                return place.refuse(&format!(
                    "record '{record}': field '{name}' is not a valid name, or occurs twice"
                ));
            }
            let path = join(place.path, name);
            let below = SchemaPlace { namespace: place.namespace, path: &path, depth: place.depth + 1 };
            let kind = self.read(kind, &below)?;
            let aliases = strings(field.get("aliases"), &below)?;
            fields.push(Field {
                name: name.to_owned(),
                aliases,
                kind,
                default: field.get("default").cloned(),
            });
        }
        Ok(fields)
    }
}

fn enumeration(
    name: String,
    aliases: Vec<String>,
    object: &Map<String, Value>,
    place: &SchemaPlace<'_>,
) -> Result<Type, PlanError> {
    let symbols = strings(object.get("symbols"), place)?;
    let distinct: HashSet<_> = symbols.iter().collect();
    if symbols.is_empty() || distinct.len() < symbols.len() || !symbols.iter().all(|symbol| is_name(symbol)) {
        return place.refuse(&format!("enum '{name}': symbols must be names, at least one, none twice"));
    }
    let default = match object.get("default") {
        None => None,
        Some(Value::String(default)) if symbols.contains(default) => Some(default.clone()),
        Some(_) => return place.refuse(&format!("enum '{name}': its default is not one of its symbols")),
    };
    Ok(Type::Enum { name, aliases, symbols, default })
}

/// The strings of an optional list. Any other item is an error, since skipping it would shift later indices.
fn strings(list: Option<&Value>, place: &SchemaPlace<'_>) -> Result<Vec<String>, PlanError> {
    let strings = match list {
        None => Some(Vec::new()),
        Some(list) => list
            .as_array()
            .and_then(|list| list.iter().map(|item| item.as_str().map(str::to_owned)).collect()),
    };
    strings.map_or_else(|| place.refuse("symbols and aliases must be lists of names"), Ok)
}

fn qualify(name: &str, namespace: &str) -> String {
    if name.contains('.') { name.to_owned() } else { join(namespace, name) }
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

/// The sizes of all types. Each is computed once: named types may be shared by many others.
fn sizes(types: &[Type]) -> Vec<Size> {
    let mut known = vec![None; types.len()];
    for id in 0..types.len() {
        size(types, id, &mut known);
    }
    known.into_iter().flatten().collect()
}

fn size(types: &[Type], id: TypeId, known: &mut Vec<Option<Size>>) -> Size {
    if let Some(size) = known[id] {
        return size;
    }
    // A recursive type finds this entry while its own size is computed, so its size is never exact.
    known[id] = Some(Size { min: 0, exact: None });
    let exactly = |length| Size { min: length, exact: Some(length) };
    let computed = match &types[id] {
        Type::Null => exactly(0),
        Type::Boolean => exactly(1),
        Type::Float => exactly(4),
        Type::Double => exactly(8),
        Type::Fixed { length, .. } => exactly(*length),
        Type::Record { fields, .. } => fields.iter().fold(exactly(0), |sum, field| {
            let Size { min, exact } = size(types, field.kind, known);
            let total = sum.exact.zip(exact).map(|(left, right)| left.saturating_add(right));
            Size { min: sum.min.saturating_add(min), exact: total }
        }),
        _ => Size { min: 1, exact: None },
    };
    known[id] = Some(computed);
    computed
}
