//! What reads bytes of clients, as a function of bytes, for fuzzers: the engine alone, with a server that answers bytes
//! with themselves. It has no thread and no socket, and its clock goes on when nothing else does.

use std::{pin::pin, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    runtime::Builder,
    time::timeout,
};

use crate::{Admission, Ahead, KeepAlive, Places, Terms, echo::Echo, serve};

/// Bytes on their way in each direction. More than any input has, so that a client need not wait for the server.
const PIPE_BYTES: usize = 1 << 20;
/// How long a client waits for more, by the server's clock, before it ends its side of the connection.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// How long a connection may last then. Longer than any time-out of the server.
const END_MAX: Duration = Duration::from_secs(600);

/// What a server answers to all bytes that a client sends on a connection, and the error with which the connection
/// ended, if one of the two sides broke its rules.
///
/// # Panics
/// The connection does not end after the client has ended its side.
#[must_use]
pub fn connection(bytes: &[u8]) -> (Vec<u8>, Option<String>) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("it needs no system resource").block_on(async {
        let (mut client, server) = duplex(PIPE_BYTES);
        let served = tokio::spawn(async move {
            let place = Places::new(1).take().expect("it is free");
            let head_timeout = Duration::from_secs(10);
            let terms = Terms { streams_max: 4096, head_timeout, keep_alive: KeepAlive::default() };
            let share = Admission::new(64 << 20, "too many requests").share();
            let stop = pin!(std::future::pending());
            let served = serve(Ahead::new(server), &Echo, share, terms, stop, place).await;
            served.map_err(|error| error.to_string())
        });
        let mut answer = Vec::new();
        // If the server has ended the connection already, it needs no more of these bytes.
        let _ = client.write_all(bytes).await;
        while let Ok(Ok(1..)) = timeout(QUIET_MAX, client.read_buf(&mut answer)).await {}
        let _ = client.shutdown().await;
        let rest = timeout(END_MAX, client.read_to_end(&mut answer)).await;
        assert!(rest.is_ok(), "a connection ends after its client has ended its side");
        drop(client);
        let served = timeout(END_MAX, served).await.expect("a connection ends");
        (answer, served.expect("a connection does not panic").err())
    })
}
