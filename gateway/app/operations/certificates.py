"""`pairgate certs`: a certificate authority and certificates for localhost, to try TLS with."""

from datetime import datetime
from pathlib import Path

from gateway.app.failure import ExitCode, Failure
from gateway.net.certs import FILES, write_certificates


def make_certificates(folder: Path, now: datetime) -> list[Path]:
    """
    Create the files; return them.

    Raises:
        Failure: one of the files exists already (it stays), or the folder can't be written.
    """
    files = [folder / name for name in FILES]
    present = [str(file) for file in files if file.exists()]
    if present:
        text = f"{', '.join(present)}: already there; remove them, or name another folder"
        raise Failure(text, ExitCode.WRONG)
    try:
        write_certificates(folder, now=now)
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror}") from error
    return files
