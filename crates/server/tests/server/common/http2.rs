//! Requests on the streams of an HTTP/2 connection, made of frames.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::Request;
use prost::Message;
use synod_server::Server;
use tokio::{net::TcpStream, time::timeout};

pub const SOON: Duration = Duration::from_secs(20);

pub fn framed(message: &impl Message) -> BytesMut {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    message.encode(&mut frame).unwrap();
    frame
}

pub async fn http2(server: &Server) -> SendRequest<Bytes> {
    http2_with(server, &mut h2::client::Builder::new()).await
}

pub async fn http2_with(server: &Server, builder: &mut h2::client::Builder) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.client_addresses()[0]).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (send, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

pub fn post(path: &str) -> http::request::Builder {
    Request::post(format!("http://x{path}")).header("content-type", "application/grpc")
}

/// Sends a request, with the end of its body or without.
pub async fn begin(
    send: &SendRequest<Bytes>,
    request: http::request::Builder,
    body: &[u8],
    end: bool,
) -> (ResponseFuture, SendStream<Bytes>) {
    let mut send = send.clone().ready().await.unwrap();
    let (response, mut stream) = send.send_request(request.body(()).unwrap(), false).unwrap();
    stream.send_data(Bytes::copy_from_slice(body), end).unwrap();
    (response, stream)
}

pub struct Answer {
    pub http_status: u16,
    pub grpc_status: String,
    pub grpc_message: String,
    /// The encodings of messages that a refusal names.
    pub accepts: String,
    pub body: Bytes,
}

pub async fn finish(response: ResponseFuture) -> Answer {
    let answer = async {
        let response = response.await.unwrap();
        let http_status = response.status().as_u16();
        let mut trailers = response.headers().clone();
        let mut stream = response.into_body();
        let body = read(&mut stream, usize::MAX).await;
        if let Some(last) = stream.trailers().await.unwrap() {
            trailers = last;
        }
        let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        Answer {
            http_status,
            grpc_status: text("grpc-status"),
            grpc_message: text("grpc-message"),
            accepts: text("grpc-accept-encoding"),
            body,
        }
    };
    timeout(SOON, answer).await.expect("it is answered")
}

/// Reads at least `bytes_min` bytes, or all that there are.
pub async fn read(stream: &mut RecvStream, bytes_min: usize) -> Bytes {
    let mut body = BytesMut::new();
    while body.len() < bytes_min
        && let Some(piece) = stream.data().await
    {
        let piece = piece.unwrap();
        stream.flow_control().release_capacity(piece.len()).unwrap();
        body.put(piece);
    }
    body.freeze()
}

pub async fn call(send: &SendRequest<Bytes>, request: http::request::Builder, body: &[u8]) -> Answer {
    let (response, _stream) = begin(send, request, body, true).await;
    finish(response).await
}
