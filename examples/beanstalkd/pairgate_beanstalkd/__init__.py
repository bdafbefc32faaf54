"""beanstalkd as a namespace of Pairgate."""
