//! Random bytes: decoding never panics, and memory never runs ahead of the received bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use crate::rig::asks::*;
use crate::rig::node_within;
use proptest::prelude::*;
use prost::Message;
use streamlearn_serve::inputs::Limits;
use streamlearn_serve::protocol::{
    CallerOptions, DoorLimits, DoorSettings, RequestFormat, decode, every_kind, fuzz, fuzz_items, read,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

thread_local! {
    /// Bytes allocated by this thread, and their maximum since the last reset.
    static ALLOCATED: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator with counters.
struct Counted;

fn count(bytes: isize) {
    // A thread that is ending is not counted.
    let _ = ALLOCATED.try_with(|allocated| {
        let (now, max) = allocated.get();
        allocated.set((now + bytes, max.max(now + bytes)));
    });
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

// It serves the whole binary: what other tests allocate is counted on their threads.
#[global_allocator]
static COUNTED: Counted = Counted;

/// Starts a count; returns the number of bytes allocated so far.
fn begin_count() -> isize {
    ALLOCATED.with(|allocated| {
        let (now, _) = allocated.get();
        allocated.set((now, now));
        now
    })
}

/// The maximum number of bytes allocated since the count began, beyond those before it.
fn allocated_since(before: isize) -> usize {
    ALLOCATED.with(|allocated| (allocated.get().1 - before) as usize)
}

/// The maximum number of bytes allocated during `work`, beyond those before it.
fn allocated_max(work: impl FnOnce()) -> usize {
    let before = begin_count();
    work();
    allocated_since(before)
}

const LIMITS: Limits = Limits { candidates_max: 4096, values_max: 1 << 24, message_bytes_max: 4 << 20 };

/// Checks that decoding a message allocates in proportion to its bytes.
fn assert_bounded(bytes: &[u8]) {
    let naming = every_kind(LIMITS);
    let allocated = allocated_max(|| drop(decode(bytes, &naming, CallerOptions::default())));
    // A value of one byte becomes a key of eight bytes; a default costs as much for each candidate.
    let bytes_max = 16 * bytes.len() + 16 * naming.inputs().item.len() * LIMITS.candidates_max + (64 << 10);
    assert!(allocated <= bytes_max, "{allocated} bytes allocated for {}", bytes.len());
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
            assert!(decode(&bytes, &every_kind(LIMITS), CallerOptions::default()).is_err());
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
    let output = OutputAsk { name: long(), parameters: nothing() };
    let with_input = |input| {
        let mut request = good();
        request.inputs[0] = input;
        request
    };
    let all = [
        with_parameter(good(), "shown", Choice::Text(long())),
        with_parameter(good(), "deadline_ms", Choice::Text(long())),
        with_parameter(good(), &long(), Choice::Bool(true)),
        InferAsk { parameters: nothing(), ..good() },
        InferAsk { model_name: long(), ..good() },
        InferAsk { model_version: long(), ..good() },
        InferAsk { id: long(), ..good() },
        InferAsk { outputs: vec![output], ..good() },
        with_output(good(), &long()),
        with_input(tensor(long(), String::new())),
        with_input(tensor("user_id".to_owned(), long())),
        with_input(InputTensor { parameters: nothing(), ..tensor("user_id".to_owned(), "INT64".to_owned()) }),
        with_input(InputTensor { shape: vec![-1], ..tensor(long(), "INT64".to_owned()) }),
    ];
    for (number, request) in all.into_iter().enumerate() {
        let (bytes, naming) = (request.encode_to_vec(), every_kind(LIMITS));
        let allocated = allocated_max(|| assert!(decode(&bytes, &naming, CallerOptions::default()).is_err()));
        assert!(allocated <= 64 << 10, "{allocated} bytes allocated for refusal {number}");
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
        let allocated = allocated_max(|| fuzz(text.as_bytes()));
        // A growing buffer exists twice while it is moved.
        let bytes_max = 64 * text.len() + (256 << 10);
        assert!(allocated <= bytes_max, "{allocated} bytes allocated for {} of {:.20}", text.len(), text);
    }
}

/// The maximum number of bytes in a body, as nodes have it.
const BODY_BYTES_MAX: usize = 16 << 20;

/// Checks that a body of this size, with `part` repeated between its other parts, is refused, and that nothing
/// of it is stored but one copy of a text.
fn assert_refused_cheaply(format: RequestFormat, begin: &str, part: &str, end: &str, expected: &str) {
    let parts = part.repeat((BODY_BYTES_MAX - begin.len() - end.len()) / part.len());
    let body = format!("{begin}{}{end}", parts.trim_end_matches(','));
    let (naming, mut text) = (every_kind(LIMITS), String::new());
    let allocated = allocated_max(|| {
        text = read(format, body.as_bytes(), &naming).unwrap_err().to_string();
    });
    let place = format!("{format:?} {begin:.100}{part:.20}");
    assert!(text.contains(expected) && text.len() < 1000, "{place}: {text:.1000}");
    assert!(
        allocated <= BODY_BYTES_MAX + (1 << 20),
        "{place}: {allocated} bytes allocated for {BODY_BYTES_MAX}"
    );
}

#[test]
fn long_lists_and_texts_in_tensor_json_are_refused_before_they_take_memory() {
    let distinct: String = (0..1 << 20).map(|at| format!("\"{at}\":0,")).collect();
    let output = |fields: &str| format!(r#"{{"outputs":[{{"name":"like","parameters":{{{fields}"#);
    let input = |fields: &str| format!(r#"{{"inputs":[{{"name":"item_id","datatype":"INT64",{fields}"#);
    let with_parameters = |fields: &str| input(&format!(r#""shape":[1],"parameters":{{{fields}"#));
    let empty_input = r#"{"name":"","datatype":"","shape":[]},"#;
    for (begin, part, end, expected) in [
        (r#"{"parameters":{"shown":["#, "0,", "]}}", "\"shown\": more than 4096 values"),
        (r#"{"parameters":{"shown":["#, "0,-1,", "]}}", "\"shown\": -1 is not the index"),
        (r#"{"parameters":{"priority":["#, "0,", "]}}", "\"priority\" is a list, expected one value"),
        (r#"{"parameters":{"priority":["#, "[],", "]}}", "\"priority\" is a list, expected one value"),
        (r#"{"parameters":{"#, &distinct, "}}", "unknown parameter \"0\""),
        (r#"{"outputs":["#, r#"{"name":""},"#, "]}", "unknown output \"\""),
        (r#"{"outputs":["#, r#"{"name":"like"},"#, "]}", "output \"like\" is requested twice"),
        (
            &output(r#""binary_data":["#),
            "0,",
            "]}}]}",
            "output \"like\": parameter \"binary_data\" is a list",
        ),
        (&output(""), &distinct, "}}]}", "output \"like\": unsupported parameter \"0\"; help: outputs take"),
        (r#"{"inputs":["#, empty_input, "]}", "unknown input \"\""),
        (&input(r#""data":[1],"shape":["#), "1,", "]}]}", "\"item_id\": shape [1, 1, ..."),
        (&input(r#""shape":[1],"data":["#), "1,", "]}]}", "input \"user_id\": it is missing"),
        (&with_parameters(r#""x":["#), "8,", "]}}]}", "input \"item_id\": parameter \"x\" is a list"),
        (&with_parameters(""), &distinct, "}}]}", "input \"item_id\": unsupported parameter \"0\"; help: "),
        // Debug texts of this character have six bytes.
        ("{\"", "\u{7f}", "\":0}", "unknown field "),
        ("{\"inputs\":\"", "\u{7f}", "\"}", "invalid type: string"),
        ("{\"inputs\":[{\"", "\u{7f}", "\":0}]}", "unknown field "),
        (&input("\"shape\":[\""), "\u{7f}", "\"]}]}", "the shape of input \"item_id\": the text"),
        (&with_parameters("\"x\":\""), "0", "\"}}]}", "unsupported parameter \"x\""),
    ] {
        assert_refused_cheaply(RequestFormat::Tensors(None), begin, part, end, expected);
    }
}

#[test]
fn long_lists_and_texts_in_rows_are_refused_before_they_take_memory() {
    for (begin, part, end, expected) in [
        (r#"{"shown":["#, "0,", "]}", "\"shown\": more than 4096 values"),
        (r#"{"shown":["#, "[", "", "\"shown\": a list, expected a whole number"),
        (r#"{"priority":["#, "0,", "]}", "parameter \"priority\" is a list, expected one value"),
        (r#"{"version":["#, "0,", "]}", "parameter \"version\" is a list, expected one value"),
        (r#"{"outputs":["#, r#""","#, "]}", "unknown output \"\""),
        (r#"{"outputs":["#, r#""like","#, "]}", "output \"like\" is requested twice"),
        (r#"{"items":["#, "0,", "]}", "invalid type: integer `0`"),
        (r#"{"user":{"user_id":["#, "0,", "]}}", "user.user_id: a list, expected a whole number"),
        ("{\"items\":\"", "\u{7f}", "\"}", "expected a list of items"),
        ("{\"items\":[\"", "\u{7f}", "\"]}", "expected an object with a field for each input"),
        ("{\"shown\":[\"", "\u{7f}", "\"]}", "expected a whole number"),
        ("{\"shown\":\"", "\u{7f}", "\"}", "expected comma-separated indices of candidates"),
        ("{\"id\":\"", "\u{7f}", "\",\"user\":{\"user_id\":5}}", "\"items\" is missing"),
    ] {
        assert_refused_cheaply(RequestFormat::Rows, begin, part, end, expected);
    }
}

/// Sends a body in chunks of one byte; returns the first line of the answer, and the memory that it took.
fn answer_to_chunks(bytes: usize, bytes_max: usize) -> (String, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (chunks, mut reply) = (b"1\r\n \r\n".repeat(1024), [0; 64]);
    runtime.block_on(async {
        let door_limits = DoorLimits {
            http_bytes_max: bytes_max,
            arrival_wait_ms_max: 300_000, // a debug build on a busy machine is slow
            ..DoorLimits::default()
        };
        let settings = DoorSettings { limits: door_limits, ..DoorSettings::default() };
        let node = node_within(settings, Limits { message_bytes_max: bytes_max, ..LIMITS }).await;
        let mut stream = tokio::net::TcpStream::connect(node.http).await.unwrap();
        let before_bytes = begin_count();
        stream
            .write_all(b"POST /score HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        for _ in 0..bytes / 1024 {
            // A refusal may end the connection before the body does.
            if stream.write_all(&chunks).await.is_err() {
                break;
            }
        }
        let _ = stream.write_all(b"0\r\n\r\n").await;
        let read = stream.read(&mut reply).await.unwrap();
        let text = String::from_utf8_lossy(&reply[..read]);
        (text.lines().next().unwrap().to_owned(), allocated_since(before_bytes))
    })
}

#[test]
fn a_body_in_chunks_of_one_byte_takes_no_more_than_its_bytes_allow() {
    const BYTES_MAX: usize = 1 << 18;
    for (bytes, expected) in [(BYTES_MAX, "400 Bad Request"), (BYTES_MAX + 1024, "413 Payload Too Large")] {
        let (status, allocated) = answer_to_chunks(bytes, BYTES_MAX);
        assert!(status.ends_with(expected), "{status}");
        // A growing buffer exists twice while it is moved.
        assert!(allocated <= 3 * BYTES_MAX, "{allocated} bytes allocated for {bytes}");
    }
}

/// A valid request with inputs of all kinds, in either encoding.
fn good(is_raw: bool) -> Vec<u8> {
    let mut inputs = with("item_tags", &[3], Data::texts(&["a", "bc", ""]));
    inputs.push(("item_tags.lengths", vec![3], Data::Int32(vec![1, 0, 2])));
    inputs.push(("item_likes", vec![3, 2], Data::Uint32(vec![1, 2, 3, 4, 5, 6])));
    inputs.push(("item_likes.weights", vec![3, 2], Data::Fp64(vec![0.5; 6])));
    inputs.push(("user_seen", vec![4], Data::Uint64(vec![1, 2, 3, 4])));
    inputs.push(("user_seen_where", vec![4], Data::texts(&["w", "x", "y", "z"])));
    inputs.push(("item_place", vec![3, 2], Data::Fp32(vec![1.0; 6])));
    let request = with_parameter(ask(&inputs, is_raw), "shown", Choice::Text("0,2".to_owned()));
    with_output(request, "click.logit").encode_to_vec()
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
        assert!(decode(&good(is_raw), &every_kind(LIMITS), CallerOptions::default()).is_ok());
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
        fuzz_items(&bytes);
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
        fuzz_items(&bytes);
        assert_bounded(&bytes);
    }
}
