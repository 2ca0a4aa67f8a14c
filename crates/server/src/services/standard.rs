//! The services that gRPC has for every server: health and reflection.

use std::{collections::BTreeSet, sync::atomic::AtomicU64};

use prost::Message as _;
use prost_reflect::FileDescriptor;
use synod_api::grpc::{
    health::v1::{
        HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
        health_check_response::ServingStatus,
    },
    reflection::v1::{
        ErrorResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
        ServerReflectionResponse, ServiceResponse, server_reflection_request::MessageRequest as Asked,
        server_reflection_response::MessageResponse as Told,
    },
};
use synod_grpc::{Charge, Incoming, Sender, framed};
use tonic::{Code, Status};

use super::envelope::Store;
use crate::{
    Replica,
    fields::{ClientMessages, RequestBody},
    methods::{Method, POOL},
};

impl<R: Replica> Store<R> {
    /// As with etcd, health is that of the server as a whole: it serves as long as it answers.
    pub(super) async fn health(&self, request: HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
        if request.service.is_empty() {
            Ok(HealthCheckResponse { status: ServingStatus::Serving.into() })
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    /// All healths that there are: that of the server as a whole.
    pub(super) async fn all_healths(&self, _: HealthListRequest) -> Result<HealthListResponse, Status> {
        let whole = HealthCheckResponse { status: ServingStatus::Serving.into() };
        Ok(HealthListResponse { statuses: [(String::new(), whole)].into() })
    }

    /// Tells the health, which does not change until the server ends.
    pub(crate) async fn watch_health(
        &self,
        body: RequestBody<'_>,
        sender: &mut Sender,
    ) -> Result<(), Status> {
        let request: HealthCheckRequest = body.message().await?;
        let known = request.service.is_empty();
        let status = if known { ServingStatus::Serving } else { ServingStatus::ServiceUnknown };
        sender.send(framed(&HealthCheckResponse { status: status.into() })).await?;
        Err(sender.reset().await)
    }

    /// Tells what services and messages there are.
    pub(crate) async fn reflect(
        &self,
        method: &Method,
        body: &mut Incoming,
        sender: &mut Sender,
        charge: &Charge,
    ) -> Result<(), Status> {
        let mut messages = ClientMessages::new(body, self.bounds().of(method), charge);
        while let Some(request) = messages.next().await? {
            let taken = AtomicU64::new(0);
            let sent = sender.send_charged(framed(&reflected(request)), charge, &taken);
            messages.meanwhile(sent).await??;
        }
        Ok(())
    }
}

fn reflected(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let told = match &request.message_request {
        Some(Asked::ListServices(_)) => {
            let service =
                POOL.services().map(|service| ServiceResponse { name: service.full_name().to_owned() });
            Told::ListServicesResponse(ListServiceResponse { service: service.collect() })
        }
        Some(Asked::FileByFilename(name)) => file(POOL.get_file_by_name(name), name),
        Some(Asked::FileContainingSymbol(symbol)) => {
            let in_service = POOL.services().find(|service| {
                let of = |method: &str| symbol.strip_suffix(method).and_then(|rest| rest.strip_suffix('.'));
                service.full_name() == symbol
                    || service.methods().any(|method| of(method.name()) == Some(service.full_name()))
            });
            let found = in_service
                .map(|service| service.parent_file())
                .or_else(|| POOL.get_message_by_name(symbol).map(|message| message.parent_file()))
                .or_else(|| POOL.get_enum_by_name(symbol).map(|of| of.parent_file()));
            file(found, symbol)
        }
        // No file of proto3 extends a message.
        Some(Asked::FileContainingExtension(of)) => not_found(&of.containing_type),
        Some(Asked::AllExtensionNumbersOfType(of)) => not_found(of),
        None => {
            let error_message = "synod: the request asks nothing".to_owned();
            Told::ErrorResponse(ErrorResponse { error_code: Code::InvalidArgument as i32, error_message })
        }
    };
    let valid_host = request.host.clone();
    ServerReflectionResponse { valid_host, original_request: Some(request), message_response: Some(told) }
}

/// A file, and all that it imports.
fn file(found: Option<FileDescriptor>, name: &str) -> Told {
    let Some(found) = found else { return not_found(name) };
    let (mut seen, mut left, mut all) = (BTreeSet::new(), vec![found], Vec::new());
    while let Some(file) = left.pop() {
        if seen.insert(file.name().to_owned()) {
            all.push(file.file_descriptor_proto().encode_to_vec().into());
            left.extend(file.dependencies());
        }
    }
    Told::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto: all })
}

fn not_found(what: &str) -> Told {
    let error_message = format!("{what} is not known");
    Told::ErrorResponse(ErrorResponse { error_code: Code::NotFound as i32, error_message })
}
