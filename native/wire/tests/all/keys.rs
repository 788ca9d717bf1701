//! Keys, checksums and offsets against their references.

use proptest::prelude::*;
use streamlearn_wire::keys::{hash_ints, hash_strings, int_of_key, key_of_bytes, key_of_int, slot_salt};
use streamlearn_wire::offsets::{OffsetsError, check_offsets};
use xxhash_rust::xxh3::xxh3_64_with_seed;

proptest! {
    #[test]
    fn an_integer_hashes_as_its_eight_bytes(values: Vec<i64>, salt: u64) {
        let mut keys = vec![0; values.len()];
        hash_ints(&values, salt, &mut keys);
        for (&value, key) in values.iter().zip(keys) {
            prop_assert_eq!(key, xxh3_64_with_seed(&value.to_le_bytes(), salt));
            prop_assert_eq!(key, key_of_int(value, salt));
        }
    }

    #[test]
    fn a_string_hashes_as_its_bytes(values in prop::collection::vec(".{0,300}", 0..20), salt: u64) {
        let data = values.concat();
        let mut offsets = vec![0i32];
        for value in &values {
            offsets.push(offsets[offsets.len() - 1] + i32::try_from(value.len()).unwrap());
        }
        let mut keys = vec![0; values.len()];
        hash_strings(&offsets, data.as_bytes(), salt, &mut keys).unwrap();
        for (value, key) in values.iter().zip(keys) {
            prop_assert_eq!(key, xxh3_64_with_seed(value.as_bytes(), salt));
            prop_assert_eq!(key, key_of_bytes(value.as_bytes(), salt));
        }
    }

    #[test]
    fn any_offsets_are_either_refused_or_safe_to_cut_by(offsets: Vec<i8>, length in 0usize..100) {
        let offsets: Vec<i64> = offsets.into_iter().map(i64::from).collect();
        let rising = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let complete = offsets.first() == Some(&0) && offsets.last() == Some(&(length as i64));
        prop_assert_eq!(check_offsets(&offsets, length).is_ok(), rising && complete);
    }
}

#[test]
fn the_salt_of_a_slot_is_the_hash_of_its_name() {
    assert_eq!(slot_salt("video_id"), xxh3_64_with_seed(b"video_id", 0));
}

#[test]
fn the_first_bad_offset_is_named() {
    let check = |offsets: &[i32]| check_offsets(offsets, 5);
    assert_eq!(check(&[]), Err(OffsetsError::Empty));
    assert_eq!(check(&[1, 5]), Err(OffsetsError::Start(1)));
    assert_eq!(check(&[0, 4, 3, 2, 5]), Err(OffsetsError::Decrease { place: 2, found: 3, before: 4 }));
    assert_eq!(check(&[0, 4]), Err(OffsetsError::End { place: 1, found: 4, length: 5 }));
    assert_eq!(check(&[0, 5]), Ok(()));
}

#[test]
fn a_schema_fingerprint_is_the_specifications() {
    let fingerprint = streamlearn_wire::checksum::schema_fingerprint;
    assert_eq!(fingerprint(b""), 0xC15D_213A_A4D7_A795);
    assert_eq!(fingerprint(b"\"int\""), 0x7275_d51a_3f39_5c8f);
}

proptest! {
    #[test]
    fn the_integer_of_a_key_is_the_one_that_made_it(value: i64, salt: u64) {
        prop_assert_eq!(int_of_key(key_of_int(value, salt), salt), value);
        prop_assert_eq!(key_of_int(int_of_key(value as u64, salt), salt), value as u64);
    }
}
