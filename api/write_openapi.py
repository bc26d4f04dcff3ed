"""`python -m api.write_openapi`: write `docs/openapi.json`, which a test compares."""

import json
import tempfile
from pathlib import Path

from api.app import create_app
from core.process.settings import ApiSettings

TARGET = Path(__file__).parents[1] / "docs" / "openapi.json"


def main() -> None:
    """Write the OpenAPI document of the application. No database is needed."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ApiSettings(
            database_url=f"sqlite:///{folder}/nothing.db",
            redis_url=f"unix://{folder}/nothing.sock?db=0",
            store=Path(folder) / "store",
        )
        app = create_app(settings)
        TARGET.write_text(json.dumps(app.openapi(), indent=1, sort_keys=True) + "\n")
        app.state.process.ringer.close()


if __name__ == "__main__":
    main()
