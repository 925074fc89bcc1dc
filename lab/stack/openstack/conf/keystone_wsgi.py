# Keystone parses sys.argv, which is gunicorn's here.
import sys
sys.argv = ['keystone']
from keystone.server.wsgi import initialize_public_application
application = initialize_public_application()
