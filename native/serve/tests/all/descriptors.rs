//! The descriptors that reflection answers with are the .proto files that users get.

use std::path::Path;

use prost::Message;

#[test]
fn the_descriptors_are_those_of_the_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = root.join("../../streamlearn/serving/proto");
    let mut compiled = protox::compile(["oip.proto", "health.proto"], [files]).unwrap();
    for file in &mut compiled.file {
        file.source_code_info = None;
    }
    let (file, bytes) = (root.join("src/protocol/grpc/descriptors.bin"), compiled.encode_to_vec());
    if std::env::var_os("WRITE").is_some() {
        std::fs::write(&file, &bytes).unwrap();
    }
    let is_same = std::fs::read(&file).unwrap() == bytes;
    assert!(is_same, "run `WRITE=1 cargo test -p streamlearn-serve --test all descriptors`");
}
