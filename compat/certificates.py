"""Certificates for servers and clients on this machine, made with `openssl`."""

import subprocess


def certificates(folder, names=("own",)):
    """An authority, `ca.pem`, and certificates that it gives, NAME.pem with NAME.key, for servers and clients."""
    folder.mkdir()
    (folder / "san").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    # Python's clients since 3.13 demand that an authority says what its key is for.
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    for name in names:
        # Without a common name: etcd refuses JSON of a client that has one as soon as users count.
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O={name}")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "san", "-out", f"{name}.pem")
    return folder


def server_flags(files, name="own"):
    """Flags of a member: TLS for clients and between members, and each side checks the other's certificate."""
    server = [f"--cert-file={files}/{name}.pem", f"--key-file={files}/{name}.key", f"--trusted-ca-file={files}/ca.pem"]
    peers = [flag.replace("--", "--peer-", 1) for flag in server]
    return [*server, "--client-cert-auth", *peers, "--peer-client-cert-auth"]
