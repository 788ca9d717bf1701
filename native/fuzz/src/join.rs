//! Saves of marks, with valid checksums, and calls on the restored state.

use streamlearn_join::{Marks, MarksSettings, Settling};

use crate::sealed;

const BYTES_MAX: u64 = 1 << 20;

/// The first byte sets the number of labels. The head and the entries of pages follow, each after its length.
pub fn marks(bytes: &[u8]) {
    let Some((&labels, body)) = bytes.split_first() else { return };
    let (count, has_numbers) = (usize::from(labels % 32) + 1, labels & 64 != 0);
    let settings = MarksSettings {
        labels: count,
        numbers: u32::from(has_numbers),
        items_max: 1_000,
        bytes_max: BYTES_MAX,
    };
    let mut marks = Marks::new(settings).expect("valid settings");
    let parts = parts(body);
    let [head, pages @ ..] = &parts[..] else { return };
    let mut entries: Vec<(&str, &[u8])> = vec![("head", head)];
    entries.extend(pages.iter().map(|page| ("pages", &page[..])));
    let loaded = marks.load(&entries);
    assert!(marks.bytes() <= BYTES_MAX, "{} bytes are in use", marks.bytes());
    if loaded.is_err() {
        return;
    }
    let topic = marks.topic("t").expect("few topics");
    let numbers = vec![1.5; 3 * count];
    let rows = Settling {
        topic,
        partitions: &[0, 1],
        offsets: &[5, 5_000],
        times: &[0, 1 << 40],
        request_index: &[0, 0, 1],
        items: &[0, 9, 3],
        settles: &[1; 3],
        labels: &[0, 1, 1],
        settle_times: if has_numbers { &[5; 3] } else { &[] },
        numbers: if has_numbers { &numbers } else { &[] },
    };
    let _ = (marks.settle(1, &rows), marks.refuse(2, &rows));
    marks.acknowledge(1);
    let (_, saved) = marks.save(0);
    let saved: Vec<(&str, &[u8])> = saved.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let mut restored = Marks::new(MarksSettings { bytes_max: u64::MAX >> 1, ..settings }).expect("as above");
    restored.load(&saved).expect("a save of what was loaded");
    marks.forget(1 << 39);
}

/// Splits bytes into parts, each after a two-byte length, and appends checksums.
fn parts(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while let Some((length, tail)) = bytes.split_first_chunk::<2>() {
        let (part, tail) = tail.split_at(usize::from(u16::from_le_bytes(*length)).min(tail.len()));
        parts.push(sealed(part));
        bytes = tail;
    }
    parts
}
