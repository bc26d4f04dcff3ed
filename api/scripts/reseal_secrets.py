"""`python -m api.scripts.reseal_secrets`: seal every secret anew with the first key of the file."""

import sys

from sqlalchemy import select

from api.scripts.secret_box import SecretBox
from core.database.database import Database
from core.process.settings import ApiSettings
from core.tables.scripts import Secret
from strategies.plan.words import counted


def main() -> int:
    """Reseal all secrets in one transaction; return the exit code."""
    settings = ApiSettings()
    box = SecretBox(settings.secrets_key_file)
    database = Database(settings.database_url)
    try:
        count = reseal(database, box)
    finally:
        database.close()
    sys.stdout.write(f"Sealed {counted(count, 'secret')} with the first key of {box.path}.\n")
    return 0


def reseal(database: Database, box: SecretBox) -> int:
    """Seal every secret anew with the first key of `box`; return the number of secrets."""
    with database.write() as session:
        secrets = session.scalars(select(Secret)).all()
        for secret in secrets:
            secret.sealed = box.seal(box.open(secret.sealed))
        return len(secrets)


if __name__ == "__main__":
    sys.exit(main())
