# Octavia parses sys.argv, which is gunicorn's here.
import sys
sys.argv = ['octavia-api', '--config-file', '{{.Conf}}/octavia.conf']
from octavia.api.app import setup_app
application = setup_app()
