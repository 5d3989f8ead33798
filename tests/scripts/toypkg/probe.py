"""Prints, as JSON, all that a script can see of how it was started."""

import json
import sys

main = sys.modules["__main__"]
spec = __spec__
print(
    json.dumps(
        {
            "name": __name__,
            "file": __file__,
            "package": __package__,
            "cached": __cached__,
            "spec": spec and [spec.name, spec.origin, spec.parent],
            "loader": [type(__loader__).__name__, __loader__.name, __loader__.path],
            "builtins": type(__builtins__).__name__,
            "annotations": globals().get("__annotations__", "absent"),
            "names": sorted(name for name in globals() if name.startswith("__")),
            "argv": sys.argv,
            "path": sys.path,
            "is_main": main.__dict__ is globals(),
            "code_file": sys._getframe().f_code.co_filename,
        }
    )
)
