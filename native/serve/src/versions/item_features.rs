//! ItemFeatures: what describes the items of a version, by key, so that requests may leave it out. A new version shares
//! the pages that it does not change.

use std::sync::Arc;

use crate::answer::Refusal;
use crate::columns::Column;
use crate::inputs::{Count, Input, Kind};
use crate::request::{Request, Values};
use crate::versions::raw_ids::{PAGE_BITS, page_of, sort};

/// The form of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnForm {
    /// One key for each item.
    One,
    /// Any number of keys.
    Many,
    /// Any number of keys, each with a weight.
    Weighted,
    /// As many numbers.
    Dense(usize),
}

impl ColumnForm {
    /// The form of an input.
    pub fn of(input: &Input) -> Self {
        match input.kind {
            Kind::Dense { width, .. } => Self::Dense(width),
            Kind::Slot { values: Count::One, .. } => Self::One,
            Kind::Slot { values: Count::Weighted, .. } => Self::Weighted,
            Kind::Slot { .. } => Self::Many,
        }
    }

    /// Whether values are those of as many items.
    fn fits(self, values: &Values, items: usize) -> bool {
        match (self, values) {
            (Self::One, Values::Keys(keys)) => keys.len() == items,
            (Self::Dense(width), Values::Numbers(numbers)) => Some(numbers.len()) == items.checked_mul(width),
            (Self::Many | Self::Weighted, Values::Lists { keys, offsets, weights }) => {
                let has_weights = (self == Self::Weighted).then_some(keys.len());
                offsets.len() == items + 1
                    && offsets[0] == 0
                    && offsets.is_sorted()
                    && offsets[items] as usize == keys.len()
                    && weights.as_ref().map(Vec::len) == has_weights
            }
            _ => false,
        }
    }

    /// The values of a column that was built; it is empty afterwards.
    pub fn values(self, column: &mut Column) -> Values {
        let Column { keys, offsets, weights, numbers } = std::mem::take(column);
        match self {
            Self::One => Values::Keys(keys),
            Self::Dense(_) => Values::Numbers(numbers),
            Self::Many | Self::Weighted => {
                let offsets = if offsets.is_empty() { vec![0] } else { offsets };
                Values::Lists { keys, offsets, weights: (self == Self::Weighted).then_some(weights) }
            }
        }
    }
}

/// The features of a version's items, in pages by the first bits of the key, which is a hash.
#[derive(Debug, Clone)]
pub struct ItemFeatures {
    forms: Arc<[ColumnForm]>,
    pages: Vec<Arc<FeaturePage>>,
}

/// The features of some keys, in the order of the keys; a column for each form.
#[derive(Debug, Default, PartialEq)]
struct FeaturePage {
    keys: Vec<u64>,
    columns: Vec<Values>,
}

impl ItemFeatures {
    /// No items.
    pub fn new(forms: Vec<ColumnForm>) -> Self {
        Self { forms: forms.into(), pages: vec![Arc::default(); 1 << PAGE_BITS] }
    }

    /// The forms of the columns.
    pub fn forms(&self) -> &[ColumnForm] {
        &self.forms
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.pages.iter().map(|page| page.keys.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory of this version, those that it shares with other versions included.
    pub fn bytes(&self) -> usize {
        let of_values = |values: &Values| size_of::<Values>() + values.bytes();
        let of_page = |page: &Arc<FeaturePage>| {
            size_of::<FeaturePage>() + 8 * page.keys.len() + page.columns.iter().map(of_values).sum::<usize>()
        };
        self.pages.iter().map(of_page).sum()
    }

    /// The features of the next version: these, those of new or changed items, and none of removed ones. A column has a
    /// row for each key.
    ///
    /// # Errors
    /// If a key is given twice, or a column has another form.
    pub fn apply(&self, keys: &[u64], columns: &[Values], removed: &[u64]) -> Result<Self, String> {
        let is_fit = columns.len() == self.forms.len()
            && self.forms.iter().zip(columns).all(|(form, values)| form.fits(values, keys.len()));
        if !is_fit {
            return Err(format!("the columns are not {:?} of {} items", self.forms, keys.len()));
        }
        let mut changes: Vec<(u64, Option<usize>)> =
            keys.iter().enumerate().map(|(row, &key)| (key, Some(row))).collect();
        changes.extend(removed.iter().map(|&key| (key, None)));
        sort(&mut changes)?;
        let mut next = self.clone();
        for same_page in changes.chunk_by(|one, other| page_of(one.0) == page_of(other.0)) {
            let page = &mut next.pages[page_of(same_page[0].0)];
            let changed = page.changed(&self.forms, same_page, (columns, keys.len()));
            if **page != changed {
                *page = Arc::new(changed);
            }
        }
        Ok(next)
    }

    /// Fills what a request left out, and notes which candidates are known. What a caller sent stays as it is. Of an item
    /// that is not known, columns keep their defaults.
    ///
    /// # Errors
    /// If an item is not known, and a column that it lacks has no default.
    pub fn fill(&self, request: &mut Request, version: u64) -> Result<(), Refusal> {
        let inputs = request.inputs.clone();
        let (Some(library), Some(mut left_out)) = (&inputs.library, request.left_out.take()) else {
            return Ok(());
        };
        let candidates = request.candidates;
        let Values::Keys(ids) = &request.item[library.id] else {
            return Err(Refusal::Broken("the slot that names items has no keys".to_owned()));
        };
        let mut is_lacking = vec![false; candidates];
        for (_, rows) in &left_out.columns {
            match rows {
                None => is_lacking.fill(true),
                Some(rows) => rows.iter().for_each(|&row| is_lacking[row as usize] = true),
            }
        }
        let place = |(&key, is_lacking)| if is_lacking { self.find(key) } else { None };
        let places: Vec<Option<(&FeaturePage, usize)>> =
            ids.iter().zip(is_lacking.iter().copied()).map(place).collect();
        left_out.known =
            places.iter().zip(is_lacking).map(|(place, lacks)| place.is_some() || !lacks).collect();
        let mut column = Column::default();
        for (at, rows) in &left_out.columns {
            let Some(from) = library.columns.iter().position(|column| column == at) else { continue };
            let (input, before, mut begin) = (&inputs.item[*at], &request.item[*at], 0);
            let mut take = |row: usize| match places[row] {
                Some((page, place)) => {
                    if begin < row {
                        column.add(before, candidates, begin..row);
                    }
                    column.add(&page.columns[from], page.keys.len(), place..place + 1);
                    begin = row + 1;
                    // At once: an item may have thousands of values, and a request may name it thousands of times.
                    check_values(&column, begin, inputs.limits.values_max, input)
                }
                None if input.is_optional() => Ok(()),
                None => Err(Refusal::Bad(format!(
                    "items[{row}].{}: it is missing and has no default, and the library of version {version} has no \
                     such item; help: send it, or write the item to the topic of items",
                    input.name
                ))),
            };
            match rows {
                None => (0..candidates).try_for_each(&mut take)?,
                Some(rows) => rows.iter().try_for_each(|&row| take(row as usize))?,
            }
            if begin < candidates {
                column.add(before, candidates, begin..candidates);
            }
            check_values(&column, candidates, inputs.limits.values_max, input)?;
            request.item[*at] = self.forms[from].values(&mut column);
        }
        request.left_out = Some(left_out);
        Ok(())
    }

    fn find(&self, key: u64) -> Option<(&FeaturePage, usize)> {
        let page = &self.pages[page_of(key)];
        page.keys.binary_search(&key).ok().map(|at| (&**page, at))
    }
}

/// Refuses a column of the first candidates that has too many values.
fn check_values(column: &Column, rows: usize, values_max: usize, input: &Input) -> Result<(), Refusal> {
    if column.keys.len().max(column.numbers.len()) <= values_max {
        return Ok(());
    }
    Err(Refusal::Bad(format!(
        "{:?} of the first {rows} candidates has more than {values_max} values; help: ask for fewer candidates",
        input.name
    )))
}

impl FeaturePage {
    /// This page with changes, which are in the order of their keys; `new` are the columns of so many changes.
    fn changed(
        &self,
        forms: &[ColumnForm],
        changes: &[(u64, Option<usize>)],
        (new, new_rows): (&[Values], usize),
    ) -> Self {
        // The rows of the next page: of this one, or of the changes.
        let (mut rows, mut keys, mut changes) = (Vec::new(), Vec::new(), changes.iter().peekable());
        let mut push = |key, row: Option<(bool, usize)>| {
            if let Some(row) = row {
                keys.push(key);
                rows.push(row);
            }
        };
        for (at, &key) in self.keys.iter().enumerate() {
            while let Some(&(other, row)) = changes.next_if(|change| change.0 < key) {
                push(other, row.map(|row| (true, row)));
            }
            match changes.next_if(|change| change.0 == key) {
                Some(&(_, row)) => push(key, row.map(|row| (true, row))),
                None => push(key, Some((false, at))),
            }
        }
        changes.for_each(|&(key, row)| push(key, row.map(|row| (true, row))));
        let built = forms.iter().enumerate().map(|(number, form)| {
            let mut column = Column::default();
            for &(is_new, row) in &rows {
                let (values, of) =
                    if is_new { (&new[number], new_rows) } else { (&self.columns[number], self.keys.len()) };
                column.add(values, of, row..row + 1);
            }
            // A copy takes no more memory than it needs.
            form.values(&mut column).clone()
        });
        let columns = if keys.is_empty() { Vec::new() } else { built.collect() };
        keys.shrink_to_fit();
        Self { keys, columns }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// What describes an item: a key, keys with weights, and two numbers.
    type Described = (u64, Vec<(u64, f32)>, [f32; 2]);

    const FORMS: [ColumnForm; 4] =
        [ColumnForm::One, ColumnForm::Many, ColumnForm::Weighted, ColumnForm::Dense(2)];

    fn columns<'a>(items: impl Iterator<Item = &'a Described> + Clone) -> Vec<Values> {
        let lists: Vec<&Vec<(u64, f32)>> = items.clone().map(|item| &item.1).collect();
        let keys: Vec<u64> = lists.iter().flat_map(|list| list.iter().map(|one| one.0)).collect();
        let mut offsets = vec![0];
        offsets.extend(lists.iter().scan(0, |end, list| {
            *end += list.len() as i32;
            Some(*end)
        }));
        let weights = lists.iter().flat_map(|list| list.iter().map(|one| one.1)).collect();
        vec![
            Values::Keys(items.clone().map(|item| item.0).collect()),
            Values::Lists { keys: keys.clone(), offsets: offsets.clone(), weights: None },
            Values::Lists { keys, offsets, weights: Some(weights) },
            Values::Numbers(items.flat_map(|item| item.2).collect()),
        ]
    }

    proptest! {
        #[test]
        fn a_version_has_what_all_changes_say_and_its_forerunner_keeps_its_own(
            steps in prop::collection::vec(
                (
                    prop::collection::btree_map(
                        0..40_u64,
                        (0..9_u64, prop::collection::vec((0..9_u64, 0.0..1.0_f32), 0..4), [0.0..1.0_f32, 0.0..1.0_f32]),
                        0..20,
                    ),
                    prop::collection::btree_set(0..40_u64, 0..9),
                ),
                1..6,
            ),
        ) {
            // Some keys share a page.
            let key = |number: u64| (number % 7) << 60 | number;
            let (mut features, mut truth) = (ItemFeatures::new(FORMS.to_vec()), BTreeMap::new());
            for (new, removed) in steps {
                let (before, before_truth) = (features.clone(), truth.clone());
                let new: Vec<(u64, Described)> =
                    new.into_iter().filter(|one| !removed.contains(&one.0)).map(|(number, one)| (key(number), one)).collect();
                let keys: Vec<u64> = new.iter().map(|one| one.0).collect();
                let removed: Vec<u64> = removed.into_iter().map(key).collect();
                features = features.apply(&keys, &columns(new.iter().map(|one| &one.1)), &removed).unwrap();
                removed.iter().for_each(|key| { truth.remove(key); });
                truth.extend(new);
                for (features, truth) in [(&features, &truth), (&before, &before_truth)] {
                    prop_assert_eq!(features.len(), truth.len());
                    for number in 0..40 {
                        let found = features.find(key(number)).map(|(page, at)| {
                            let one = |(form, values): (&ColumnForm, &Values)| {
                                let mut column = Column::default();
                                column.add(values, page.keys.len(), at..at + 1);
                                form.values(&mut column)
                            };
                            FORMS.iter().zip(&page.columns).map(one).collect::<Vec<_>>()
                        });
                        prop_assert_eq!(found, truth.get(&key(number)).map(|one| columns([one].into_iter())));
                    }
                }
            }
        }
    }

    #[test]
    fn pages_that_stay_the_same_are_shared_and_columns_that_do_not_fit_are_refused() {
        let [one, other] = [(1, vec![(2, 0.5)], [0.5, 1.0]), (3, Vec::new(), [0.0, 2.0])];
        let keys = [1, 1 << 60];
        let features = ItemFeatures::new(FORMS.to_vec());
        let first = features.apply(&keys, &columns([&one, &other].into_iter()), &[]).unwrap();
        let next = first.apply(&keys, &columns([&one, &one].into_iter()), &[]).unwrap();
        assert!(Arc::ptr_eq(&first.pages[0], &next.pages[0]), "what describes its item is the same");
        assert!(!Arc::ptr_eq(&first.pages[1 << 8], &next.pages[1 << 8]));
        assert!(first.bytes() > features.bytes() && features.is_empty());
        let wrong = |keys: &[u64], columns: &[Values]| first.apply(keys, columns, &[]).unwrap_err();
        assert!(wrong(&[1], &columns([&one, &one].into_iter())).contains("of 1 items"));
        assert!(wrong(&keys, &columns([&one, &one].into_iter())[1..]).contains("the columns are not"));
        assert!(wrong(&[1, 1], &columns([&one, &one].into_iter())).contains("twice"));
    }
}
