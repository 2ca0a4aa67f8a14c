//! A hand-made HTTP/2 client, with streams that are not read and answers that are counted and thrown away.

use std::{
    future::pending,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::{
    SendStream,
    client::{self, ResponseFuture, SendRequest},
};
use http::{Method, Request, header};
use prost::Message;
use synod_api::etcdserverpb::RangeRequest;
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Notify,
    task::JoinHandle,
};
use tonic::{Code, Status};

pub const RANGE: &str = "/etcdserverpb.KV/Range";
pub const TXN: &str = "/etcdserverpb.KV/Txn";
pub const PUT: &str = "/etcdserverpb.KV/Put";

/// A connection of an attacker. Dropping it closes the connection.
#[derive(Debug)]
pub struct Wire {
    address: SocketAddr,
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
    stop: Arc<Notify>,
}

/// A request that was begun: its answer, and the rest of its body.
pub type Stream = (ResponseFuture, SendStream<Bytes>);

/// The size and status of an answer.
#[derive(Clone, Debug)]
pub struct Drained {
    pub bytes: u64,
    pub code: Code,
}

impl Wire {
    /// Connects. The server may send `window` bytes on a stream before it must wait for the client.
    pub async fn open(address: SocketAddr, window: u32) -> Result<Wire, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        Wire::on(stream, address, window).await
    }

    /// The same from this IPv4 address of the machine.
    pub async fn open_from(address: SocketAddr, from: IpAddr, window: u32) -> Result<Wire, String> {
        let connect = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((from, 0).into())?;
            socket.connect(address).await
        };
        Wire::on(connect.await.map_err(|error| error.to_string())?, address, window).await
    }

    async fn on(stream: TcpStream, address: SocketAddr, window: u32) -> Result<Wire, String> {
        let mut builder = client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(window.max(65_535));
        // Otherwise this client would end a connection itself on which some hundred small answers wait.
        builder.data_frame_budget(usize::MAX);
        let (sender, driver) =
            builder.enable_push(false).handshake(stream).await.map_err(|error| error.to_string())?;
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let driver = tokio::spawn(async move {
            let mut driver = driver;
            tokio::select! {
                _ = &mut driver => {}
                // The connection stays open.
                () = stopped.notified() => pending().await,
            }
        });
        Ok(Wire { address, sender, driver, stop })
    }

    /// From now on nothing is read from the connection's socket, and nothing written.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }

    /// Sends the headers of a request and some of its body, and ends the body or leaves it open.
    pub async fn send(&mut self, method: &str, body: Bytes, end: bool) -> Result<Stream, String> {
        let mut sender = self.sender.clone().ready().await.map_err(|error| error.to_string())?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}{method}", self.address))
            .header(header::TE, "trailers")
            .header(header::CONTENT_TYPE, "application/grpc")
            .body(())
            .map_err(|error| error.to_string())?;
        let (response, mut stream) =
            sender.send_request(request, false).map_err(|error| error.to_string())?;
        stream.send_data(body, end).map_err(|error| error.to_string())?;
        Ok((response, stream))
    }

    /// Sends a request, reads the answer as fast as it comes, and keeps nothing of it.
    pub async fn drain(&mut self, method: &str, message: &impl Message) -> Result<Drained, String> {
        let lost = |error: h2::Error| error.to_string();
        let (response, _stream) = self.send(method, framed(message), true).await?;
        let response = response.await.map_err(lost)?;
        if let Some(status) = Status::from_header_map(response.headers()) {
            return Ok(Drained { bytes: 0, code: status.code() });
        }
        let (mut body, mut bytes) = (response.into_body(), 0);
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(lost)?;
            bytes += piece.len() as u64;
            body.flow_control().release_capacity(piece.len()).map_err(lost)?;
        }
        let trailers = body.trailers().await.map_err(lost)?.unwrap_or_default();
        let status = Status::from_header_map(&trailers).ok_or("the answer has no gRPC status")?;
        Ok(Drained { bytes, code: status.code() })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// A message as gRPC sends it.
pub fn framed(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::with_capacity(5 + message.encoded_len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).expect("requests are far below 4 GiB"));
    message.encode(&mut bytes).expect("a BytesMut has room");
    bytes.freeze()
}

/// A range over every key of the store.
pub fn everything() -> RangeRequest {
    RangeRequest {
        key: Bytes::from_static(&[0]),
        range_end: Bytes::from_static(&[0]),
        ..RangeRequest::default()
    }
}
