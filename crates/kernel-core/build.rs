//! Compiles the acceptor and the frames of Kernel Paxos. `c/` has links to the files of `kernel/core`, which the XDP
//! program and the module compile too; a package has the files themselves.

fn main() {
    for file in ["c/acceptor.h", "c/frame.h", "src/acceptor.c", "src/frame.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    cc::Build::new()
        .files(["src/acceptor.c", "src/frame.c"])
        .std("gnu11")
        .warnings(true)
        .extra_warnings(true)
        .compile("synod_kernel_core");
}
