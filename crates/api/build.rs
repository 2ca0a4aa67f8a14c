//! Compiles the protobuf files, without `protoc`.

use std::{env, error::Error, fs, path::Path};

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "proto/mvccpb.proto",
        "proto/authpb.proto",
        "proto/etcdserverpb.proto",
        "proto/auth.proto",
        "proto/v3lock.proto",
        "proto/v3election.proto",
        "proto/health.proto",
        "proto/reflection.proto",
        "proto/synod.proto",
        "proto/kv.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let grpc = env::var_os("CARGO_FEATURE_GRPC").is_some();
    let mut described = protox::compile(files, ["proto"])?;
    // Comments are not needed at run time.
    described.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), described.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(grpc)
        .build_server(grpc)
        // Fields of type bytes are slices of the received buffer instead of copies.
        .bytes(".")
        .compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
