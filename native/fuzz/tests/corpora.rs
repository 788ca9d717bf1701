//! Runs every target on its libFuzzer corpus and on mutations of it, so that targets keep working between
//! campaigns.

use std::fs;
use std::path::Path;

use streamlearn_fuzz::TARGETS;

/// Mutations per file.
const CHANGED: u64 = 30;

/// Random numbers from a seed: SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }
}

/// Replaces, removes, duplicates or inserts some bytes.
fn changed(bytes: &[u8], other: &[u8], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len() + 1);
        let upto = (at + chance.below(9)).min(bytes.len());
        let from = chance.below(other.len() + 1);
        let replacement = match chance.below(6) {
            0 => vec![],
            1 => vec![chance.below(256) as u8],
            2 => vec![0xff; 1 + chance.below(9)],
            3 => [&bytes[at..upto], &bytes[at..upto]].concat(),
            4 => other[from..(from + chance.below(30)).min(other.len())].to_vec(),
            _ => (chance.below(1 << 20) as u64).to_le_bytes()[..1 + chance.below(8)].to_vec(),
        };
        bytes.splice(at..upto, replacement);
    }
    bytes
}

#[test]
fn every_target_takes_or_refuses_its_corpus_and_changes_of_it() {
    for (name, target) in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        names.sort();
        let files: Vec<Vec<u8>> = names.iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(!files.is_empty(), "{name} has no corpus");
        let mut chance = Chance(1);
        for (file, path) in files.iter().zip(&names) {
            println!("{}", path.display()); // shown on failure
            target(file);
            for round in 0..CHANGED {
                let bytes = changed(file, &files[chance.below(files.len())], &mut chance);
                let outcome = std::panic::catch_unwind(|| target(&bytes));
                if let Err(panic) = outcome {
                    eprintln!("{name}: change {round} of {}: {bytes:?}", path.display());
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

#[test]
fn every_corpus_is_small_and_has_a_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let (mut names, mut bytes) = (Vec::new(), 0);
    for target in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        names.push(target.file_name().into_string().unwrap());
        bytes += fs::read_dir(target.path())
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>();
    }
    names.sort();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
    assert!(bytes < 600_000, "{bytes} bytes of corpora; minimise them");
}
