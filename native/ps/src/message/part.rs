//! Push of a part: a push that belongs to one slice of one step.

use super::fields::Fields;
use super::push::PushAsk;
use crate::refusal::{Code, Refusal};

/// Bytes before the push.
pub(crate) const PART_HEAD_BYTES: usize = 16;
/// The maximum number of slices of a step.
pub const SLICES_MAX: u16 = 1024;
const LAST: u16 = 1;
const NOT_FINITE: u16 = 2;
const MAY_REPEAT: u16 = 4;
const AT_ONCE: u16 = 8;

/// The place of a push within its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartHead {
    /// The step.
    pub step: u64,
    /// The slice, from 0.
    pub slice: u16,
    /// The number of slices of the step.
    pub slices: u16,
    /// The block, from 0 in each slice and table.
    pub block: u16,
    /// Whether it is the slice's last block for this table at this shard.
    pub is_last: bool,
    /// Whether the slice's numbers are finite; if they are not, the push has no keys.
    pub is_finite: bool,
    /// Whether others may give the slice, too: what is here is then ignored. The steps follow each other by one.
    pub may_repeat: bool,
    /// Whether the push is applied when it comes, and not when the step has all slices.
    pub at_once: bool,
}

/// Gradients of one slice of one step, for one table.
#[derive(Debug, Clone, PartialEq)]
pub struct PartAsk<'a> {
    /// Its place.
    pub head: PartHead,
    /// The gradients.
    pub push: PushAsk<'a>,
}

/// Refuses a slice that the step cannot have.
pub(crate) fn check_slice(slice: u16, slices: u16) -> Result<(), Refusal> {
    if (1..=SLICES_MAX).contains(&slices) && slice < slices {
        return Ok(());
    }
    let text = format!("slice {slice} of {slices}: a step has 1 to {SLICES_MAX} slices, from 0");
    Err(Refusal::new(Code::BadRequest, text))
}

impl<'a> PartAsk<'a> {
    /// Appends the encoded payload.
    pub fn append(&self, payload: &mut Vec<u8>) {
        let PartHead { step, slice, slices, block, is_last, is_finite, may_repeat, at_once } = self.head;
        let flags = [(is_last, LAST), (!is_finite, NOT_FINITE), (may_repeat, MAY_REPEAT), (at_once, AT_ONCE)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        payload.extend_from_slice(&step.to_le_bytes());
        for number in [slice, slices, block, flags] {
            payload.extend_from_slice(&number.to_le_bytes());
        }
        self.push.append(payload);
    }

    /// Decodes a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new("a push of a part", payload);
        let (step, slice, slices) = (fields.u64()?, fields.u16()?, fields.u16()?);
        let (block, flags) = (fields.u16()?, fields.u16()?);
        if flags & !(LAST | NOT_FINITE | MAY_REPEAT | AT_ONCE) != 0 {
            return Err(fields.bad(format!("unknown flags {flags:#06x}")));
        }
        let (is_last, is_finite) = (flags & LAST != 0, flags & NOT_FINITE == 0);
        let (may_repeat, at_once) = (flags & MAY_REPEAT != 0, flags & AT_ONCE != 0);
        let push = PushAsk::decode(fields.rest())?;
        let keys = push.columns.keys.len();
        if !is_finite && keys > 0 {
            return Err(fields.bad(format!("{keys} keys of a slice that is not finite, expected 0")));
        }
        let head = PartHead { step, slice, slices, block, is_last, is_finite, may_repeat, at_once };
        Ok(Self { head, push })
    }
}
