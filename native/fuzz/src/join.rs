//! Snapshots of joins and saves of marks, with valid checksums, and calls on the restored state.

use streamlearn_join::{
    Actions, Group, Impressions, JoinCore, Label, Marks, MarksSettings, Origins, Settings, Settling, Spans,
};

use crate::sealed;

const BYTES_MAX: u64 = 1 << 20;

fn settings() -> Settings {
    let label = |action, group, rate| Label { action, group, rate, salt: 11 };
    Settings {
        groups: vec![Group { wait_ms: 5, window_ms: 40 }, Group { wait_ms: 80, window_ms: 80 }],
        labels: vec![label(0, 0, 0.5), label(1, 0, 1.0), label(0, 1, 1.0)],
        slice_ms: 7,
        orphan_wait_ms: 1_000,
        share: 1.0,
        from_ms: i64::MIN,
        pending_bytes_max: 1 << 30,
        parts_max: 8,
        waiting_max: 100,
    }
}

/// The first byte sets how much time passes after the snapshot.
pub fn snapshots(bytes: &[u8]) {
    let Some((&step, body)) = bytes.split_first() else { return };
    let Ok(mut join) = JoinCore::restore(settings(), &sealed(body)) else { return };
    let written = join.snapshot();
    let restored = JoinCore::restore(settings(), &written).expect("a snapshot of what was restored");
    assert_eq!(restored.snapshot(), written);
    let watermark = join.watermark_ms().unwrap_or(0).clamp(-(1 << 40), 1 << 40);
    for round in 0..3 {
        let now = watermark + round * i64::from(step);
        let (offset, items, codes) = ([round], [1, 2, 3, 1], [0, 1, 2, 0]);
        let origins = Origins { partitions: &[0], offsets: &offset, indexes: &[0] };
        let _ = join.add_impressions(&Impressions {
            ids: Spans { data: b"q", at: &[0, 1] },
            times: &[now],
            origins,
            items: &items[..2],
            items_at: &[0, 2],
            payloads: Spans { data: b"load", at: &[0, 4] },
        });
        let _ = join.add_actions(&Actions {
            ids: Spans { data: b"qqqq", at: &[0, 1, 2, 3, 4] },
            times: &[now, now + 6, now + 30, now + 90],
            origins: Origins { partitions: &[0; 4], offsets: &[round; 4], indexes: &[0, 1, 2, 3] },
            items: &items,
            codes: &codes,
            weights: &[1.0; 4],
        });
        join.advance(now + i64::from(step));
        let _ = (join.take(5), join.next_deadline_ms(), join.bytes(), join.snapshot());
    }
    join.advance(1 << 42);
    while join.ready() > 0 {
        join.take(1_000);
    }
}

/// The first byte sets the number of labels. The head and the entries of pages follow, each after its length.
pub fn marks(bytes: &[u8]) {
    let Some((&labels, body)) = bytes.split_first() else { return };
    let settings =
        MarksSettings { labels: usize::from(labels % 32) + 1, items_max: 1_000, bytes_max: BYTES_MAX };
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
    let rows = Settling {
        topic,
        partitions: &[0, 1],
        offsets: &[5, 5_000],
        times: &[0, 1 << 40],
        request_index: &[0, 0, 1],
        items: &[0, 9, 3],
        settles: &[1; 3],
        labels: &[0, 1, 1],
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_has_snapshots_of_the_format_of_today() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/join_snapshots");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
        let restored = files.filter(|bytes| JoinCore::restore(settings(), &sealed(&bytes[1..])).is_ok());
        assert!(
            restored.count() > 0,
            "the format has changed: take snapshots into the corpus, and fuzz again"
        );
    }
}
