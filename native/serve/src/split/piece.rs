//! A piece: some candidates of a request, as one node sends them to another. Little-endian, and checked before memory
//! is taken: a peer may send anything.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::answer::Refusal;
use crate::inputs::{Count, Inputs, Kind};
use crate::request::{Request, Values, Wishes};
use crate::versions::VersionName;

/// The first bytes; the last one is the number of the format.
const FORMAT: [u8; 4] = *b"slp\x01";
/// What gRPC puts before a message: a flag and its length.
pub const FRAME_BYTES: usize = 5;

/// The head of a piece, before its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHead {
    /// Tells whether both nodes have the same inputs in the same layout.
    pub fingerprint: u64,
    /// The version that must score it.
    pub version: VersionName,
    /// The time that is left for it, in microseconds.
    pub left_us: u64,
    /// The route of its request.
    pub route: u64,
    /// The priority of its request.
    pub priority: u8,
}

/// Encodes candidates of a request, as a message of gRPC. None of them make a hello.
pub fn encode(head: &PieceHead, request: Option<&Request>, range: Range<usize>) -> Bytes {
    let mut out = vec![0; FRAME_BYTES];
    out.extend_from_slice(&FORMAT);
    let VersionName { number, identity } = head.version;
    for number in [head.fingerprint, number, identity, head.left_us, head.route] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.push(head.priority);
    out.extend_from_slice(&(range.len() as u32).to_le_bytes());
    if let Some(request) = request {
        request.user.iter().for_each(|values| write(&mut out, values, 1, 0..1));
        request.item.iter().for_each(|values| write(&mut out, values, request.candidates, range.clone()));
    }
    let bytes = (out.len() - FRAME_BYTES) as u32;
    out[1..FRAME_BYTES].copy_from_slice(&bytes.to_be_bytes());
    out.into()
}

/// Appends a range of a column's examples.
fn write(out: &mut Vec<u8>, values: &Values, examples: usize, range: Range<usize>) {
    match values {
        Values::Keys(keys) => extend(out, &keys[range], |key| key.to_le_bytes()),
        Values::Numbers(numbers) => {
            let width = numbers.len() / examples;
            extend(out, &numbers[range.start * width..range.end * width], |number| number.to_le_bytes());
        }
        Values::Lists { keys, offsets, weights } => {
            let offsets = &offsets[range.start..=range.end];
            out.extend(offsets.windows(2).flat_map(|pair| (pair[1] - pair[0]).to_le_bytes()));
            let range = offsets[0] as usize..offsets[offsets.len() - 1] as usize;
            extend(out, &keys[range.clone()], |key| key.to_le_bytes());
            extend(out, weights.as_ref().map_or(&[][..], |weights| &weights[range]), |one| one.to_le_bytes());
        }
    }
}

fn extend<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], bytes: impl Fn(T) -> [u8; N]) {
    out.extend(values.iter().flat_map(|value| bytes(*value)));
}

/// Decodes a piece, without the frame of gRPC, as a request of its own; `None` for a hello.
///
/// # Errors
/// If the bytes are no piece, or one for other inputs.
pub fn decode(
    bytes: &[u8],
    inputs: &Arc<Inputs>,
    fingerprint: u64,
) -> Result<(PieceHead, Option<Request>), Refusal> {
    let torn = || Refusal::Bad("the bytes are not a piece of a request".to_owned());
    let mut reader = Reader(bytes);
    if reader.take(FORMAT.len()).ok_or_else(torn)? != FORMAT {
        return Err(Refusal::NotKept("the piece has a format of another release".to_owned()));
    }
    let mut next = || reader.next().map(u64::from_le_bytes);
    let numbers = [next(), next(), next(), next(), next()];
    let [Some(sent), Some(number), Some(identity), Some(left_us), Some(route)] = numbers else {
        return Err(torn());
    };
    if sent != fingerprint {
        return Err(Refusal::NotKept("the piece is for a model with other inputs".to_owned()));
    }
    let (priority, candidates) = (reader.next(), reader.next().map(u32::from_le_bytes));
    let (Some([priority]), Some(candidates)) = (priority, candidates) else { return Err(torn()) };
    let candidates = candidates as usize;
    if candidates > inputs.limits.candidates_max {
        return Err(Refusal::Bad(format!("the piece has {candidates} candidates, too many for this node")));
    }
    let head = PieceHead { fingerprint, version: VersionName { number, identity }, left_us, route, priority };
    if candidates == 0 {
        return if reader.0.is_empty() { Ok((head, None)) } else { Err(torn()) };
    }
    let (user, item) = (reader.side(inputs, true, 1), reader.side(inputs, false, candidates));
    let (Some(user), Some(item), true) = (user, item, reader.0.is_empty()) else { return Err(torn()) };
    let wishes = Wishes { deadline_us: Some(left_us), priority, route: Some(route), ..Wishes::default() };
    let request = Request { wishes, ..Request::new(inputs.clone(), candidates, user, item) };
    Ok((head, Some(request)))
}

/// The bytes that were not read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Reads values; there are as many bytes before any memory is taken.
    fn values<T, const N: usize>(&mut self, count: usize, value: fn([u8; N]) -> T) -> Option<Vec<T>> {
        let bytes = self.take(count.checked_mul(N)?)?;
        Some(bytes.chunks_exact(N).map(|chunk| value(chunk.try_into().expect("as many bytes"))).collect())
    }

    fn numbers(&mut self, count: usize) -> Option<Vec<f32>> {
        self.values(count, f32::from_le_bytes).filter(|numbers| numbers.iter().all(|one| one.is_finite()))
    }

    /// Reads the columns of a side. Those of a history have one length.
    fn side(&mut self, inputs: &Inputs, is_user: bool, rows: usize) -> Option<Vec<Values>> {
        let (columns, values_max) =
            (if is_user { &inputs.user } else { &inputs.item }, inputs.limits.values_max);
        let mut history: Option<Vec<i32>> = None;
        let mut side = Vec::with_capacity(columns.len());
        for input in columns {
            side.push(match input.kind {
                Kind::Dense { width, .. } => Values::Numbers(self.numbers(rows.checked_mul(width)?)?),
                Kind::Slot { values: Count::One, .. } => Values::Keys(self.values(rows, u64::from_le_bytes)?),
                Kind::Slot { values, .. } => {
                    let longest = if let Count::Newest(newest) = values { newest } else { values_max };
                    let offsets = self.offsets(rows, longest, values_max)?;
                    if let Count::Newest(_) = values
                        && *history.get_or_insert_with(|| offsets.clone()) != offsets
                    {
                        return None;
                    }
                    let count = offsets[rows] as usize;
                    let keys = self.values(count, u64::from_le_bytes)?;
                    let weights = if values == Count::Weighted { Some(self.numbers(count)?) } else { None };
                    Values::Lists { keys, offsets, weights }
                }
            });
        }
        Some(side)
    }

    fn offsets(&mut self, rows: usize, longest: usize, values_max: usize) -> Option<Vec<i32>> {
        let lengths = self.values(rows, u32::from_le_bytes)?;
        let (mut offsets, mut end) = (vec![0], 0_usize);
        for length in lengths {
            end += length as usize;
            if length as usize > longest || end > values_max {
                return None;
            }
            offsets.push(i32::try_from(end).ok()?);
        }
        Some(offsets)
    }
}
