//! Compiles the protobuf files, without `protoc`.

use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "proto/mvccpb.proto",
        "proto/authpb.proto",
        "proto/etcdserverpb.proto",
        "proto/auth.proto",
        "proto/synod.proto",
        "proto/kv.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let grpc = env::var_os("CARGO_FEATURE_GRPC").is_some();
    tonic_prost_build::configure()
        .build_client(grpc)
        .build_server(grpc)
        // Fields of type bytes are slices of the received buffer instead of copies.
        .bytes(".")
        .compile_fds(protox::compile(files, ["proto"])?)?;
    Ok(())
}
