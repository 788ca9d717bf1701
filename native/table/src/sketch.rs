//! Sketch: counts the recent sightings of a part's keys, in four bits per counter. Knows no thresholds and no
//! rows.
//!
//! It is a count-min sketch with conservative update: of a key's four counters, only those below the new
//! count are raised, which disturbs other keys' counts least. Counts stop at [`COUNT_MAX`].
//!
//! Table time is divided into windows, `[n * window_ms, (n + 1) * window_ms)`. Counters are kept for the
//! current and the previous window, and a key's count is the sum of both. With table time as of the last
//! tick:
//!
//! * A sighting at most `window_ms` ago is always counted: counters may be too high but never too low. A key
//!   seen `threshold` times within any `window_ms` reaches the threshold at the last sighting.
//! * A sighting `2 * window_ms` ago or earlier is not counted: a key with such gaps never counts more than 1,
//!   except for collisions.
//! * Collisions, if each window brings one new key per 8 counters: of keys seen once, fewer than 6 in 100
//!   count 2 or more, and fewer than 1 in 1,000 count 3 or more. With one per 16 counters, fewer than 1 in 100
//!   count 2 or more.
//!
//! The same calls give the same counts, on any machine and after any save and restore. Counters are allocated
//! when the first key is counted, and freed after two windows without keys.

/// Counts stop here, so a threshold is 1..=15.
pub const COUNT_MAX: u32 = 15;
/// Maximum counters of a part's window.
pub const WIDTH_COUNTERS_MAX: u32 = 1 << 20;
/// Minimum counters: those of one cache line.
pub const WIDTH_COUNTERS_MIN: u32 = BLOCK_COUNTERS as u32;

const BLOCK_COUNTERS: usize = 64;
const ROWS: usize = 4;
const MAGIC: [u8; 4] = *b"SKT1";
const HEAD_BYTES: usize = 32;
const HAS_WINDOW: u64 = 1;
const HAS_CURRENT: u64 = 2;
const HAS_PREVIOUS: u64 = 4;

/// The size and window of a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SketchSettings {
    /// Counters of one part in one window, a power of two. Each takes a byte of memory, since there are two
    /// windows.
    pub width_counters: u32,
    /// The minimum table time for which a sighting is remembered.
    pub window_ms: i64,
}

impl SketchSettings {
    /// Checks the bounds; the error names the setting, its value and its bounds.
    pub fn check(&self) -> Result<(), String> {
        let (width, bounds) = (self.width_counters, WIDTH_COUNTERS_MIN..=WIDTH_COUNTERS_MAX);
        if !width.is_power_of_two() || !bounds.contains(&width) {
            let (least, most) = bounds.into_inner();
            return Err(format!(
                "width_counters is {width}, but must be a power of two from {least} to {most}"
            ));
        }
        if self.window_ms < 1 {
            return Err(format!("window_ms is {}, but must be at least 1", self.window_ms));
        }
        Ok(())
    }

    fn blocks(&self) -> usize {
        self.width_counters as usize / BLOCK_COUNTERS
    }
}

/// All counters of one key, in one cache line: for each of two windows, four rows of sixteen counters.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct SketchBlock([[u64; ROWS]; 2]);

const _: () = assert!(size_of::<SketchBlock>() == 64);

/// The counters of one part. Only the holder of the part's lock may change them.
pub struct Sketch {
    settings: SketchSettings,
    blocks: Option<Box<[SketchBlock]>>,
    /// The number of the current window; None before the first tick.
    window: Option<i64>,
    /// The half of each block that belongs to the current window.
    current: usize,
    /// Whether anything was counted, for each half.
    is_used: [bool; 2],
    is_changed: bool,
}

impl Sketch {
    /// Makes an empty sketch.
    ///
    /// # Panics
    /// If the settings do not pass [`SketchSettings::check`].
    pub fn new(settings: SketchSettings) -> Self {
        if let Err(error) = settings.check() {
            panic!("{error}");
        }
        Self { settings, blocks: None, window: None, current: 0, is_used: [false; 2], is_changed: false }
    }

    /// Counts `times` sightings of a key, given a hash of the whole key, and returns its count.
    pub fn count(&mut self, hash: u64, times: u32) -> u32 {
        if times == 0 {
            return self.estimate(hash);
        }
        let blocks = self.settings.blocks();
        let blocks =
            self.blocks.get_or_insert_with(|| vec![SketchBlock::default(); blocks].into_boxed_slice());
        let (at, shifts) = place(hash, blocks.len());
        let words = &mut blocks[at].0;
        let raised = least(&words[self.current], shifts).saturating_add(times).min(COUNT_MAX);
        for (word, shift) in words[self.current].iter_mut().zip(shifts) {
            if (*word >> shift & 15) < u64::from(raised) {
                *word = *word & !(15 << shift) | u64::from(raised) << shift;
                self.is_changed = true;
            }
        }
        self.is_used[self.current] = true;
        (raised + least(&words[1 - self.current], shifts)).min(COUNT_MAX)
    }

    /// The count of a key.
    pub fn estimate(&self, hash: u64) -> u32 {
        let Some(blocks) = &self.blocks else { return 0 };
        let (at, shifts) = place(hash, blocks.len());
        let sum = blocks[at].0.iter().map(|words| least(words, shifts)).sum::<u32>();
        sum.min(COUNT_MAX)
    }

    /// Sets the table time. It never decreases: an earlier time changes nothing. Counts before the first tick
    /// belong to the window of that tick.
    pub fn tick(&mut self, now_ms: i64) {
        let window = now_ms.div_euclid(self.settings.window_ms);
        let passed = window.saturating_sub(self.window.unwrap_or(window));
        if passed < 0 || self.window == Some(window) {
            return;
        }
        self.window = Some(window);
        self.is_changed = true;
        if passed > 0 {
            self.current = 1 - self.current;
            self.clear(self.current);
        }
        if passed > 1 {
            self.clear(1 - self.current);
        }
        if self.is_used == [false; 2] {
            self.blocks = None;
        }
    }

    fn clear(&mut self, half: usize) {
        if std::mem::take(&mut self.is_used[half]) {
            self.blocks.iter_mut().flatten().for_each(|block| block.0[half] = [0; ROWS]);
        }
    }

    /// Whether its bytes changed since [`Self::clear_changed`] was last called, or since it was created.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Marks its bytes as saved.
    pub fn clear_changed(&mut self) {
        self.is_changed = false;
    }

    /// The memory of its counters.
    pub fn counters_bytes(&self) -> usize {
        self.blocks.as_ref().map_or(0, |blocks| size_of_val(&**blocks))
    }

    /// The serialised sketch: a head of 32 bytes, then half a byte for each counter of each window with
    /// counts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let halves = [self.current, 1 - self.current].map(|half| self.is_used[half].then_some(half));
        let mut flags = if self.window.is_some() { HAS_WINDOW } else { 0 };
        flags |= if halves[0].is_some() { HAS_CURRENT } else { 0 };
        flags |= if halves[1].is_some() { HAS_PREVIOUS } else { 0 };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.counters_bytes());
        bytes.extend(MAGIC);
        bytes.extend(self.settings.width_counters.to_le_bytes());
        bytes.extend(self.settings.window_ms.to_le_bytes());
        bytes.extend(self.window.unwrap_or(0).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for half in halves.into_iter().flatten() {
            let words = self.blocks.iter().flatten().flat_map(|block| block.0[half]);
            words.for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        bytes
    }

    /// Restores the bytes of [`Self::to_bytes`]. The bytes may be arbitrary: anything that is not a sketch
    /// with these settings is an error, and no more memory is allocated than such a sketch takes.
    ///
    /// # Panics
    /// If the settings do not pass [`SketchSettings::check`].
    pub fn from_bytes(settings: SketchSettings, bytes: &[u8]) -> Result<Self, String> {
        let mut sketch = Self::new(settings);
        let Some((head, mut rest)) = bytes.split_at_checked(HEAD_BYTES) else {
            return Err(format!("a sketch has at least {HEAD_BYTES} bytes, got {}", bytes.len()));
        };
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (window_ms, window, flags) = (number(8) as i64, number(16) as i64, number(24));
        let width_counters = (number(0) >> 32) as u32;
        if head[..4] != MAGIC || flags > (HAS_WINDOW | HAS_CURRENT | HAS_PREVIOUS) {
            return Err(format!("not a sketch: it begins with {:02x?} and has flags {flags:#x}", &head[..4]));
        }
        if (SketchSettings { width_counters, window_ms }) != settings {
            return Err(format!(
                "the sketch has width_counters {width_counters} and window_ms {window_ms}, \
                 but the settings say {} and {}",
                settings.width_counters, settings.window_ms
            ));
        }
        sketch.is_used = [flags & HAS_CURRENT != 0, flags & HAS_PREVIOUS != 0];
        let half_bytes = settings.blocks() * ROWS * 8;
        let expected = half_bytes * sketch.is_used.iter().filter(|is_used| **is_used).count();
        if rest.len() != expected {
            return Err(format!(
                "the sketch should have {expected} bytes of counters, but has {}",
                rest.len()
            ));
        }
        if flags & HAS_WINDOW == 0 && (window != 0 || sketch.is_used[1]) {
            return Err(format!(
                "the sketch has window {window} or one before it, but was never told the time"
            ));
        }
        sketch.window = (flags & HAS_WINDOW != 0).then_some(window);
        for half in (0..2).filter(|half| sketch.is_used[*half]) {
            let counters;
            (counters, rest) = rest.split_at(half_bytes);
            if counters.iter().all(|byte| *byte == 0) {
                return Err("the sketch claims counted keys, but no counter is set".to_owned());
            }
            let blocks =
                sketch.blocks.get_or_insert_with(|| vec![SketchBlock::default(); settings.blocks()].into());
            let words = blocks.iter_mut().flat_map(|block| &mut block.0[half]);
            for (word, bytes) in words.zip(counters.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            }
        }
        Ok(sketch)
    }
}

/// The block of a key, and the shift of its counter in each row's word.
#[inline(always)]
fn place(hash: u64, blocks: usize) -> (usize, [u32; ROWS]) {
    // The hash already chose the part and the index line; mixing again avoids bits that are equal for the
    // whole part.
    let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = mixed ^ mixed >> 32;
    let shifts = [0, 4, 8, 12].map(|from| (mixed >> from & 15) as u32 * 4);
    ((mixed >> 16) as usize & (blocks - 1), shifts)
}

/// The smallest of a key's counters.
#[inline(always)]
fn least(words: &[u64; ROWS], shifts: [u32; ROWS]) -> u32 {
    words.iter().zip(shifts).map(|(word, shift)| (word >> shift & 15) as u32).min().expect("there are four")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const WINDOW_MS: i64 = 1_000;

    fn sketch(width_counters: u32) -> Sketch {
        Sketch::new(SketchSettings { width_counters, window_ms: WINDOW_MS })
    }

    /// A hash as a part sees it: the first ten bits are the part's, the same for all its keys.
    fn hash(key: u64) -> u64 {
        let mut value = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (value ^ (value >> 31)) >> 10 | 0x2a5 << 54
    }

    #[derive(Debug, Clone)]
    enum Call {
        Count(u64, u32),
        Pass(i64),
        Save,
    }

    fn calls() -> impl Strategy<Value = Vec<Call>> {
        let count = (0u64..200, prop_oneof![Just(1u32), 0u32..6, Just(u32::MAX)]);
        let call = prop_oneof![
            30 => count.prop_map(|(key, times)| Call::Count(key, times)),
            3 => (-500i64..1_500).prop_map(Call::Pass),
            1 => (0i64..10_000).prop_map(Call::Pass),
            1 => Just(Call::Save),
        ];
        prop::collection::vec(call, 1..400)
    }

    proptest! {
        #[test]
        fn a_key_never_counts_less_than_it_was_seen(calls in calls(), begin in -5_000i64..5_000) {
            let (mut sketch, mut now, mut latest) = (sketch(64), begin, begin);
            let mut seen: HashMap<u64, Vec<(i64, u32)>> = HashMap::new();
            sketch.tick(now);
            for call in calls {
                match call {
                    Call::Pass(ms) => {
                        now += ms;
                        latest = latest.max(now);
                        sketch.tick(now);
                    }
                    Call::Save => sketch = Sketch::from_bytes(sketch.settings, &sketch.to_bytes()).unwrap(),
                    Call::Count(key, times) => {
                        seen.entry(key).or_default().push((latest, times));
                        let lately = seen[&key].iter().filter(|(at, _)| latest - at <= WINDOW_MS);
                        let exact = lately.fold(0u32, |sum, (_, times)| sum.saturating_add(*times)).min(COUNT_MAX);
                        let count = sketch.count(hash(key), times);
                        prop_assert!((exact..=COUNT_MAX).contains(&count), "{key}: {count} of {exact}");
                        prop_assert_eq!(count, sketch.estimate(hash(key)));
                    }
                }
            }
        }

        #[test]
        fn a_key_alone_counts_what_two_windows_saw(calls in calls()) {
            let (mut sketch, mut now, mut seen) = (sketch(4_096), 0i64, HashMap::<i64, u32>::new());
            sketch.tick(0);
            for call in calls {
                match call {
                    Call::Pass(ms) => {
                        now += ms.max(0);
                        sketch.tick(now);
                    }
                    Call::Save => {}
                    Call::Count(_, times) => {
                        let window = now.div_euclid(WINDOW_MS);
                        let sum = seen.entry(window).or_default();
                        *sum = sum.saturating_add(times);
                        let windows = [window, window - 1].map(|number| seen.get(&number).map_or(0, |&sum| sum.min(15)));
                        prop_assert_eq!(sketch.count(77, times), (windows[0] + windows[1]).min(COUNT_MAX));
                    }
                }
            }
        }

        #[test]
        fn a_sketch_that_was_saved_counts_on_as_if_it_was_not(before in calls(), after in calls(), ticks in any::<bool>()) {
            let (mut sketch_kept, mut now) = (sketch(256), 0i64);
            let play = |sketch: &mut Sketch, calls: &[Call], now: &mut i64| {
                calls.iter().map(|call| match call {
                    Call::Count(key, times) => sketch.count(hash(*key), *times),
                    Call::Pass(ms) if ticks => {
                        *now += ms;
                        sketch.tick(*now);
                        0
                    }
                    _ => 0,
                }).collect::<Vec<_>>()
            };
            play(&mut sketch_kept, &before, &mut now);
            let bytes = sketch_kept.to_bytes();
            let mut sketch_restored = Sketch::from_bytes(sketch_kept.settings, &bytes).unwrap();
            prop_assert!(!sketch_restored.is_changed());
            prop_assert_eq!(sketch_restored.to_bytes(), bytes);
            let mut then = now;
            prop_assert_eq!(play(&mut sketch_kept, &after, &mut now), play(&mut sketch_restored, &after, &mut then));
            prop_assert_eq!(sketch_kept.to_bytes(), sketch_restored.to_bytes());
        }

        #[test]
        fn a_sketch_is_changed_when_its_bytes_are(calls in calls()) {
            let (mut sketch, mut now) = (sketch(64), 0i64);
            for call in calls {
                let before = sketch.to_bytes();
                sketch.clear_changed();
                match call {
                    Call::Count(key, times) => { sketch.count(hash(key), times); }
                    Call::Pass(ms) => {
                        now += ms;
                        sketch.tick(now);
                    }
                    Call::Save => {}
                }
                prop_assert_eq!(sketch.is_changed(), sketch.to_bytes() != before);
            }
        }

        #[test]
        fn bytes_that_are_no_sketch_are_refused(
            calls in calls(),
            changes in prop::collection::vec((0usize..2_000, any::<u8>()), 0..4),
            length in prop::option::of(0usize..200),
            noise in prop::option::of(prop::collection::vec(any::<u8>(), 0..200)),
        ) {
            let mut sketch = sketch(64);
            sketch.tick(1);
            for call in calls {
                if let Call::Count(key, times) = call {
                    sketch.count(hash(key), times);
                }
            }
            let mut bytes = noise.unwrap_or_else(|| sketch.to_bytes());
            for (at, byte) in changes {
                let bytes_count = bytes.len().max(1);
                bytes.get_mut(at % bytes_count).into_iter().for_each(|target| *target = byte);
            }
            bytes.truncate(length.unwrap_or(usize::MAX));
            // Accepted bytes are a complete sketch, which serialises to the same bytes and counts.
            if let Ok(mut restored) = Sketch::from_bytes(sketch.settings, &bytes) {
                prop_assert_eq!(restored.to_bytes(), bytes);
                restored.tick(i64::MAX);
                restored.tick(i64::MIN);
                prop_assert!(restored.count(5, 1) >= 1);
            }
        }
    }

    #[test]
    fn a_sketch_of_other_settings_is_refused_with_both() {
        let mut sketch = sketch(64);
        sketch.count(1, 1);
        let (bytes, settings) = (sketch.to_bytes(), sketch.settings);
        let refuse = |settings, bytes: &[u8]| Sketch::from_bytes(settings, bytes).err().unwrap();
        let error = refuse(SketchSettings { width_counters: 128, ..settings }, &bytes);
        assert!(error.contains("width_counters 64") && error.contains("say 128"), "{error}");
        let error = refuse(SketchSettings { window_ms: 5, ..settings }, &bytes);
        assert!(error.contains("window_ms 1000") && error.contains("and 5"), "{error}");
        assert!(refuse(settings, &bytes[..31]).contains("31"));
        assert!(refuse(settings, &bytes[..63]).contains("should have 32 bytes"));
        assert!(refuse(settings, &[0; 64]).contains("not a sketch"));
        let with = |at: usize, byte| [&bytes[..at], &[byte], &bytes[at + 1..]].concat();
        assert!(refuse(settings, &with(16, 9)).contains("window 9"));
        assert!(refuse(settings, &with(24, 4)).contains("never told the time"));
        assert!(refuse(settings, &with(24, 8)).contains("flags 0x8"));
        assert!(refuse(settings, &[&bytes[..32], &[0; 32]].concat()).contains("no counter is set"));
    }

    #[test]
    fn counters_are_there_only_while_they_count() {
        let mut sketch = sketch(1_024);
        assert_eq!((sketch.counters_bytes(), sketch.count(1, 0), sketch.to_bytes().len()), (0, 0, 32));
        sketch.tick(0);
        sketch.count(1, 3);
        assert_eq!((sketch.counters_bytes(), sketch.to_bytes().len()), (1_024, 32 + 512));
        sketch.tick(WINDOW_MS);
        assert_eq!((sketch.estimate(1), sketch.counters_bytes()), (3, 1_024));
        sketch.tick(2 * WINDOW_MS);
        assert_eq!((sketch.estimate(1), sketch.counters_bytes()), (0, 0));
    }

    #[test]
    fn settings_out_of_bounds_are_refused_by_name() {
        for (width_counters, window_ms, why) in [
            (32, 1, "width_counters is 32"),
            (100, 1, "is 100"),
            (1 << 21, 1, "is 2097152"),
            (64, 0, "window_ms is 0"),
        ] {
            let error = SketchSettings { width_counters, window_ms }.check().unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    /// The shares of keys that were seen once but count at least 2, 3 and 4.
    fn false_shares(width_counters: u32, counters_per_key: u32) -> [f64; 3] {
        let (mut sketch, mut over) = (sketch(width_counters), [0u32; 3]);
        let (windows, keys) =
            (50_000 * counters_per_key / width_counters + 2, width_counters / counters_per_key);
        for window in 0..windows {
            sketch.tick(i64::from(window) * WINDOW_MS);
            for key in 0..keys {
                let count = sketch.count(hash(u64::from(window) << 32 | u64::from(key)), 1);
                over.iter_mut().zip(2..).for_each(|(over, least)| *over += u32::from(count >= least));
            }
        }
        over.map(|over| f64::from(over) / f64::from(windows * keys))
    }

    #[test]
    fn few_keys_that_were_seen_once_count_more() {
        for width_counters in [256, 4_096, 65_536] {
            let [two, three, _] = false_shares(width_counters, 8);
            assert!(two < 0.06 && three < 0.001, "{width_counters}: {two} {three}");
            let [two, ..] = false_shares(width_counters, 16);
            assert!(two < 0.01, "{width_counters}: {two}");
        }
    }
}
