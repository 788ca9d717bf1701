//! Any bytes at all: none breaks the way to a request, and memory never runs ahead of what has arrived.

#[path = "rig/asks.rs"]
#[allow(dead_code)]
mod asks;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use asks::*;
use proptest::prelude::*;
use prost::Message;
use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{Said, decode, every_kind, fuzz};

thread_local! {
    /// Bytes that this thread holds, and the most it held since it was last asked.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's memory, counted.
struct Counted;

fn count(bytes: isize) {
    // A thread that ends counts no more.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps to what this asks for, as it is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// The most bytes that are held at once while `work` is done, beyond those that were.
fn most_held(work: impl FnOnce()) -> usize {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    work();
    HELD.with(|held| (held.get().1 - before) as usize)
}

const LIMITS: Limits = Limits { candidates_max: 4096, values_max: 1 << 24, message_bytes_max: 4 << 20 };

/// A message whose lengths are what they are; what is held while it is read must follow its bytes.
fn assert_bounded(bytes: &[u8]) {
    let naming = every_kind(LIMITS);
    let held = most_held(|| drop(decode(bytes, &naming, Said::default())));
    // A value of one byte becomes a key of eight; a default costs as much for each candidate there is.
    let held_max = 16 * bytes.len() + 16 * naming.inputs().item.len() * LIMITS.candidates_max + (64 << 10);
    assert!(held <= held_max, "{held} bytes held for {}", bytes.len());
}

#[test]
fn shapes_that_claim_more_than_came_take_no_memory() {
    let many = 1 << 24;
    for is_raw in [false, true] {
        for inputs in [
            with("user_tags", &[many], Data::texts(&["a"])),
            with("user_likes", &[many], Data::Int64(vec![1])),
            with("item_tags", &[3, many / 4], Data::texts(&["a"])),
            with("user_tags", &[i64::MAX, i64::MAX], Data::texts(&["a"])),
            with("item_place", &[3, i64::MAX], Data::Fp32(vec![1.0])),
            vec![least()[0].clone(), ("item_id", vec![i64::MAX], Data::Int64(vec![1]))],
        ] {
            let bytes = ask(&inputs, is_raw).encode_to_vec();
            assert!(decode(&bytes, &every_kind(LIMITS), Said::default()).is_err());
            assert_bounded(&bytes);
        }
    }
    let mut lying = ask(&with("item_word", &[3], Data::texts(&["a", "b", "c"])), true);
    lying.raw_input_contents[2][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_bounded(&lying.encode_to_vec());
}

#[test]
fn messages_of_many_small_parts_take_no_more_than_their_bytes_allow() {
    let empty_inputs = [0x2a, 0].repeat(1 << 18);
    let empty_raws = [0x3a, 0].repeat(1 << 18);
    let empty_outputs = [0x32, 0].repeat(1 << 18);
    let dims = InputTensor { shape: vec![1; 1 << 18], ..InputTensor::default() };
    let dims = InferAsk { inputs: vec![dims], ..InferAsk::default() }.encode_to_vec();
    for bytes in [empty_inputs, empty_raws, empty_outputs, dims] {
        assert_bounded(&bytes);
    }
    let full = with("user_likes", &[1 << 18], Data::Int64(vec![1; 1 << 18]));
    assert_bounded(&ask(&full, false).encode_to_vec());
}

#[test]
fn a_refusal_takes_no_more_memory_than_the_beginning_of_what_it_names() {
    let long = || "\u{1}é".repeat(1 << 20);
    let tensor = |name: String, datatype: String| InputTensor { name, datatype, ..InputTensor::default() };
    let good = || ask(&with("user_tags", &[1], Data::texts(&["a"])), false);
    let nothing = || BTreeMap::from([(long(), Parameter::default())]);
    let of_output = OutputAsk { name: long(), parameters: nothing() };
    let with_input = |input| {
        let mut asked = good();
        asked.inputs[0] = input;
        asked
    };
    let all = [
        with_parameter(good(), "shown", Choice::Text(long())),
        with_parameter(good(), "deadline_ms", Choice::Text(long())),
        with_parameter(good(), &long(), Choice::Bool(true)),
        InferAsk { parameters: nothing(), ..good() },
        InferAsk { model_name: long(), ..good() },
        InferAsk { model_version: long(), ..good() },
        InferAsk { id: long(), ..good() },
        InferAsk { outputs: vec![of_output], ..good() },
        with_output(good(), &long()),
        with_input(tensor(long(), String::new())),
        with_input(tensor("user_id".to_owned(), long())),
        with_input(InputTensor { parameters: nothing(), ..tensor("user_id".to_owned(), "INT64".to_owned()) }),
        with_input(InputTensor { shape: vec![-1], ..tensor(long(), "INT64".to_owned()) }),
    ];
    for (number, asked) in all.into_iter().enumerate() {
        let (bytes, naming) = (asked.encode_to_vec(), every_kind(LIMITS));
        let held = most_held(|| assert!(decode(&bytes, &naming, Said::default()).is_err()));
        assert!(held <= 64 << 10, "{held} bytes held for refusal {number}");
    }
}

#[test]
fn json_of_many_small_parts_takes_no_more_than_its_bytes_allow() {
    let least = r#"{"name":"","datatype":"","shape":[],"data":[]},"#.repeat(10_000);
    let parameters: String = (0..10_000).map(|at| format!("\"{at}\":0,")).collect();
    for text in [
        "[".repeat(100_000),
        "{\"user\":".repeat(10_000),
        format!("{{\"inputs\":[{least}"),
        format!("{{\"parameters\":{{{parameters}"),
        format!("{{\"shown\":[{}", "0,".repeat(100_000)),
        format!("{{\"outputs\":[{}", "\"\",".repeat(100_000)),
        format!("{{\"items\":[{}", "{\"item_id\":1},".repeat(10_000)),
    ] {
        let held = most_held(|| fuzz(text.as_bytes()));
        // Both halves of what grows are held while it moves.
        let held_max = 64 * text.len() + (256 << 10);
        assert!(held <= held_max, "{held} bytes held for {} of {:.20}", text.len(), text);
    }
}

/// A good request with an input of every kind, in either form.
fn good(is_raw: bool) -> Vec<u8> {
    let mut inputs = with("item_tags", &[3], Data::texts(&["a", "bc", ""]));
    inputs.push(("item_tags.lengths", vec![3], Data::Int32(vec![1, 0, 2])));
    inputs.push(("item_likes", vec![3, 2], Data::Uint32(vec![1, 2, 3, 4, 5, 6])));
    inputs.push(("item_likes.weights", vec![3, 2], Data::Fp64(vec![0.5; 6])));
    inputs.push(("user_seen", vec![4], Data::Uint64(vec![1, 2, 3, 4])));
    inputs.push(("user_seen_where", vec![4], Data::texts(&["w", "x", "y", "z"])));
    inputs.push(("item_place", vec![3, 2], Data::Fp32(vec![1.0; 6])));
    let wanted = with_parameter(ask(&inputs, is_raw), "shown", Choice::Text("0,2".to_owned()));
    with_output(wanted, "click.logit").encode_to_vec()
}

const JSON: &str = r#"{"id":"a","parameters":{"shown":[0,1],"deadline_ms":5},"outputs":[{"name":"like"}],"inputs":[
    {"name":"user_id","shape":[1],"datatype":"INT64","data":[5]},
    {"name":"item_id","shape":[2],"datatype":"INT32","data":[1,2]},
    {"name":"item_tags","shape":[2,1],"datatype":"BYTES","data":[["a"],["b"]]},
    {"name":"item_place","shape":[2,2],"datatype":"FP32","data":[1,2,3.5,4]}]}"#;
const ROWS: &str = r#"{"user":{"user_id":5,"user_likes":[1,2],"user_likes_weights":[0.5,1],"user_place":[1,2]},
    "items":[{"item_id":1,"item_tags":["a","b"]},{"item_id":2,"item_word":"z","item_age":null}],
    "version":18,"deadline_ms":50,"shown":[1],"outputs":["click.logit"]}"#;

#[test]
fn good_requests_are_good() {
    for is_raw in [false, true] {
        assert!(decode(&good(is_raw), &every_kind(LIMITS), Said::default()).is_ok());
    }
}

fn mutated(mut bytes: Vec<u8>, changes: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    for (at, kind, byte) in changes {
        let at = at.index(bytes.len().max(1)).min(bytes.len());
        match kind % 4 {
            0 if at < bytes.len() => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at.max(1)),
            _ => {}
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        fuzz(&bytes);
        assert_bounded(&bytes);
    }

    #[test]
    fn good_bytes_with_changes_are_taken_or_refused(
        which in 0..4usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 1..6),
    ) {
        let bytes = match which {
            0 => good(false),
            1 => good(true),
            2 => JSON.into(),
            _ => ROWS.into(),
        };
        let bytes = mutated(bytes, &changes);
        fuzz(&bytes);
        assert_bounded(&bytes);
    }
}
